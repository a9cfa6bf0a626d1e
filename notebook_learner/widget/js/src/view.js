// One view of a Learner: puts the parts together, and decides when anything is drawn.

import { Bell, chosen } from "./bell.js";
import { Controls } from "./controls.js";
import { Curves } from "./curves.js";
import { Breakpoints, Inspection, Verified } from "./debugger.js";
import { Dials } from "./dials.js";
import { freshId, h, keepFocus, setAttribute, setText, show } from "./dom.js";
import { Exports } from "./exports.js";
import { Header, Progress } from "./header.js";
import { asSeen } from "./kernel.js";
import { keepKeys } from "./keys.js";
import { Checkpoints, Failure, Log, Setup } from "./lists.js";
import { Rewinder } from "./rewind.js";
import { Evaluated, Numbers, Ranks, Texts } from "./table.js";
import { follow } from "./theme.js";
import { Trouble, number, register } from "./trouble.js";

const WAITING = "waiting for the kernel: it answers when the running cell is over";
const FIRST_WAIT = 3000; // ms without a snapshot before the panel says so
const ANSWER_WAIT = 2000; // ms without an answer to a button
const ANSWER_SHOWN = 6000;
const SPOKEN_EVERY = 3000; // ms between two sentences to a screen reader

export class View {
  #store;
  #stop = new AbortController();
  #frame = 0;
  #all = false; // whether the next frame draws more than the plot
  #onScreen = false;
  #answer = null;
  #spoken = { text: "", at: 0 };
  #toSay = "";
  #compact = false;
  #told; // whether the kernel wants it compact; a click here has the last word

  constructor(store, host) {
    this.#store = store;
    const signal = this.#stop.signal;
    const ask = (cmd, args) => store.ask(cmd, args);
    this.panel = h("section", { class: "nl-panel", role: "region", "aria-label": "Learner", tabindex: -1 });
    this.header = new Header();
    this.size = h("button", { class: "nl-button nl-small", type: "button" });
    this.size.addEventListener("click", () => this.#resize(!this.#compact), { signal });
    this.progress = new Progress();
    const refuse = (text) => this.#note(false, text);
    this.curves = new Curves(this.panel, ask, refuse, signal, (alone) => this.schedule(!alone));
    this.exports = new Exports(this.curves, (ok, text) => this.#note(ok, text), signal);
    this.bell = new Bell(store, (ok, text) => this.#note(ok, text), () => this.#look(), signal);
    this.controls = new Controls(ask, refuse, () => this.inspection.rank, signal);
    this.rewinder = new Rewinder(ask, refuse, (step) => this.curves.aim(step), signal);
    this.checkpoints = new Checkpoints(ask, signal);
    this.inspection = new Inspection(ask, refuse, signal);
    this.verified = new Verified(ask, refuse, signal);
    this.breakpoints = new Breakpoints(ask, refuse, signal);
    this.setup = new Setup();
    this.dials = new Dials(ask, refuse, signal);
    this.trouble = new Trouble(this, signal);
    this.parts = [
      this.header,
      this.controls,
      this.progress,
      new Failure(),
      this.curves,
      this.rewinder,
      this.inspection,
      new Log(signal),
      new Numbers(),
      new Texts(),
      new Evaluated(),
      new Ranks(),
      this.verified,
      this.breakpoints,
      this.checkpoints,
      this.setup,
      this.dials,
    ];
    this.#assemble(host);
    this.#listen(signal);
    follow(this.panel, () => this.#repaint(), signal);
    this.#update();
  }

  #assemble(host) {
    const [, , , failure, , , , log, numbers, texts, evaluated, ranks] = this.parts;
    this.hint = h("div", { class: "nl-hint", id: freshId("hint"), "data-part": "hint" });
    this.live = h("div", { class: "nl-unseen", role: "status", "aria-live": "polite" });
    this.waiting = h("div", { class: "nl-waiting", "data-part": "waiting" }, h("span", { class: "nl-spinner", "aria-hidden": "true" }), h("span", {}, "loading"));
    this.whole = h(
      "div",
      { class: "nl-whole" },
      this.header.element,
      this.trouble.element,
      h("div", { class: "nl-bar" }, this.controls.element, this.hint),
      this.progress.element,
      this.dials.element,
      failure.element,
      h(
        "div",
        { class: "nl-body" },
        h("div", { class: "nl-main" }, this.curves.element, this.rewinder.element, this.curves.grid.element, this.inspection.element, log.element),
        h("div", { class: "nl-side" }, numbers.element, texts.element, evaluated.element, ranks.element, this.verified.element, this.breakpoints.element, this.checkpoints.element, this.setup.element),
      ),
    );
    this.curves.tools.append(this.exports.element);
    this.progress.element.append(this.bell.element, this.size);
    this.panel.append(this.waiting, this.whole, this.live);
    host.append(this.panel);
  }

  #listen(signal) {
    const unsubscribe = this.#store.subscribe((what, detail) => this.#heard(what, detail));
    signal.addEventListener("abort", unsubscribe);
    const screen = new IntersectionObserver((entries) => {
      this.#onScreen = entries[entries.length - 1].isIntersecting;
      this.#look();
    });
    screen.observe(this.panel);
    signal.addEventListener("abort", () => screen.disconnect());
    document.addEventListener("visibilitychange", () => this.#look(), { signal });
    const clock = setInterval(() => this.#tick(), 1000);
    signal.addEventListener("abort", () => clearInterval(clock));
    keepKeys(this.panel, signal);
    register(this, signal);
  }

  /** The directory of the run that it shows, and whether its learner has that run. */
  get path() {
    return this.#store.board?.path ?? "";
  }

  get alive() {
    return this.#store.board?.readonly === false && !this.#store.over && !["gone", "replaced"].includes(this.#store.trouble.kind);
  }

  /** Leave a picture of the panel behind: its learner is gone, and the notebook takes this view away. */
  #leave() {
    if (this.#store.board === null || !this.panel.isConnected) return;
    this.trouble.update(this.#store.board, { kind: "replaced", text: "this learner was replaced or deleted; the picture shows what it had done" });
    const still = this.panel.cloneNode(true);
    for (const drawn of this.panel.querySelectorAll("canvas")) {
      const image = h("img", { src: drawn.toDataURL(), alt: "", class: drawn.className });
      image.style.cssText = `${drawn.style.cssText}; width: 100%; height: 100%`;
      still.querySelector("canvas").replaceWith(image);
    }
    for (const control of still.querySelectorAll("[tabindex]")) control.removeAttribute("tabindex");
    // JupyterLab hides the output of a view that goes, with all that is in it.
    const output = this.panel.closest(".jp-OutputArea-output");
    (output ?? this.panel.parentElement).after(output ? h("div", { class: "jp-OutputArea-output" }, still) : still);
    this.panel.remove();
  }

  close() {
    this.#stop.abort();
    cancelAnimationFrame(this.#frame);
    this.curves.close();
    this.#store.watch(this, null);
    this.panel.remove();
  }

  /** Draw once more before the next frame, all or the plot alone, if the panel can be seen. */
  schedule(all = true) {
    this.#all ||= all;
    if (this.#frame !== 0 || !this.#looking) return;
    this.#frame = requestAnimationFrame(() => {
      const whole = this.#all;
      this.#frame = 0;
      this.#all = false;
      keepFocus(this.panel, () => (whole ? this.#update() : this.curves.drawPlot()));
    });
  }

  get #looking() {
    return this.#onScreen && document.visibilityState !== "hidden" && !this.#stop.signal.aborted;
  }

  #look() {
    // A tab in the background, too, hears of the end if it is to tell it.
    this.#store.watch(this, this.#looking || (chosen() !== "off" && !this.#stop.signal.aborted));
    this.schedule();
  }

  #heard(what, detail) {
    if (what === "answer") {
      this.inspection.chooser.answered(detail);
      this.dials.answered(detail);
      const said = detail.ok && detail.cmd === "verify"; // its section says it
      if (!said) this.#note(detail.ok, detail.text);
    }
    if (what === "over") return this.#leave();
    if (what === "kernel" && detail !== "") this.#say(detail);
    this.schedule();
  }

  #note(ok, text) {
    if (text === "") return;
    this.#answer = { ok, text, at: Date.now() };
    this.#say(text);
    this.schedule();
  }

  #tick() {
    if (!this.#looking) return;
    if (this.#store.board === null) this.#showWaiting();
    else {
      this.#name(this.#store.board); // a view above may have come or gone
      this.#showHint(this.#seen());
    }
    const { kind } = this.#store.trouble;
    // A newer panel may have come; and what was drawn while the kernel was busy may have been told to nobody.
    if (kind === "gone" || kind !== (this.panel.dataset.trouble ?? "")) this.schedule();
    this.#speak();
  }

  #name({ title }) {
    const nth = number(this);
    setAttribute(this.panel, "aria-label", `Learner ${title}${nth > 1 ? `, view ${nth}` : ""}`.trim());
  }

  #repaint() {
    if (this.#looking) this.curves.repaint();
  }

  #update() {
    const board = this.#seen();
    show(this.waiting, board === null);
    show(this.whole, board !== null);
    if (board === null) return this.#showWaiting();
    setAttribute(this.panel, "data-status", board.status);
    setAttribute(this.panel, "data-readonly", board.readonly ? "true" : null);
    setAttribute(this.panel, "data-begun", String(this.#store.begun));
    this.#name(board);
    const { trouble } = this.#store;
    setAttribute(this.panel, "data-trouble", trouble.kind || null);
    this.trouble.update(board, trouble);
    if (board.compact !== this.#told) this.#resize(board.compact === true);
    this.#told = board.compact;
    for (const part of this.parts) part.update(board, this.#store);
    this.#showHint(board);
    this.#sayStatus(board);
    this.#speak();
  }

  /** Make it a strip for a notebook with several learners, or show all of it. */
  #resize(compact) {
    this.#compact = compact;
    if (compact) this.curves.compact();
    setAttribute(this.panel, "data-compact", compact ? "true" : null);
    setText(this.size, compact ? "Whole panel" : "Compact");
    this.schedule();
  }

  #showWaiting() {
    const late = this.#store.waited > FIRST_WAIT;
    setText(this.waiting.lastElementChild, late ? WAITING : "loading");
    if (late) this.#say(WAITING);
  }

  #seen() {
    const { board, trouble } = this.#store;
    return board && asSeen(board, trouble);
  }

  #showHint(board) {
    const { trouble } = this.#store;
    let [text, kind] = [board.connection?.text ?? "", "calm"];
    // A run is answered when it is over: who hears from the kernel does not wait for it.
    if (trouble.kind !== "") [text, kind] = trouble.kind === "gone" ? ["", "calm"] : [trouble.text, "waiting"];
    else if (this.#store.unanswered > ANSWER_WAIT && this.#store.silence > ANSWER_WAIT) [text, kind] = [WAITING, "waiting"];
    else if (this.#answer !== null && this.#answer.text !== board.error?.title && Date.now() - this.#answer.at < ANSWER_SHOWN) {
      [text, kind] = [this.#answer.text, this.#answer.ok ? "done" : "refused"];
    }
    setText(this.hint, text);
    setAttribute(this.hint, "data-kind", kind);
    // What a rank died of takes more than the two lines that there are.
    setAttribute(this.hint, "title", ["refused", "done"].includes(kind) ? text : board.connection ? `connection: ${board.connection.mode}` : null);
    this.controls.wait(this.#store.pending, board.status === "running");
  }

  #sayStatus(board) {
    const text = [board.status, board.reason, board.status === "running" ? "" : board.position].filter(Boolean).join(", ");
    const key = `${board.status} ${board.reason}`;
    if (this.lastStatus !== undefined && this.lastStatus !== key) this.#say(text);
    this.lastStatus = key;
  }

  #say(text) {
    this.#toSay = text;
  }

  /** Sentences for a screen reader: the newest, and not too many. */
  #speak() {
    if (this.#toSay === "" || this.#toSay === this.#spoken.text || Date.now() - this.#spoken.at < SPOKEN_EVERY) return;
    this.#spoken = { text: this.#toSay, at: Date.now() };
    setText(this.live, this.#toSay);
    this.#toSay = "";
  }
}

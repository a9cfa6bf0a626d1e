// The slider that goes back to an earlier step of the run.

import { freshId, h, icon, setAttribute, setText, show } from "./dom.js";
import { passes } from "./keys.js";
import { whole } from "./format.js";

/**
 * The place of the slider, and what it asks for. It stands at the newest step until a person moves it; then it
 * keeps its place, also when new steps come from the kernel, until it has acted or was left alone.
 */
export class Aim {
  constructor() {
    this.from = 0;
    this.to = 0;
    this.target = null; // a step that a person chose
    this.asked = null; // the number of the request that goes there
  }

  /** The kernel says how far back it can go; `waiting(seq)` tells whether a request has no answer yet. */
  reach(reach, waiting) {
    this.from = reach?.from ?? 0;
    this.to = reach?.to ?? 0;
    if (this.asked !== null && !waiting(this.asked)) this.leave();
    if (this.target !== null && (this.target < this.from || this.target > this.to)) this.leave();
  }

  get value() {
    return this.target ?? this.to;
  }

  /** A person moves it; the newest step is not one to go back to. */
  move(step) {
    if (this.asked === null) this.target = step < this.to ? step : null;
  }

  /** Go there: `ask(step)` gives the number of the request. */
  go(ask) {
    if (this.target !== null && this.asked === null) this.asked = ask(this.target);
  }

  leave() {
    this.target = this.asked = null;
  }

  get words() {
    if (this.target === null) return `at step ${whole(this.to)}`;
    return `${this.asked === null ? "rewind" : "rewinding"} to step ${whole(this.target)}`;
  }
}

const MOVES = new Set(["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "PageUp", "PageDown", "Home", "End"]);

export class Rewinder {
  #ask;
  #refuse;
  #aimed;
  #aim = new Aim();
  #dragged = false;
  #why = "";

  /** `aimed(step)` is called for each step that a person considers; null for no step. */
  constructor(ask, refuse, aimed, signal) {
    this.#ask = ask;
    this.#refuse = refuse;
    this.#aimed = aimed;
    this.slider = h("input", { class: "nl-slider", type: "range", min: 0, max: 1, step: 1, value: 1, "aria-label": "Rewind to a step: arrows choose it, Enter goes there" });
    this.text = h("span", { class: "nl-aim", id: freshId("aim") });
    this.element = h("div", { class: "nl-section nl-rewinder", "data-part": "rewind" }, icon("rewind"), this.slider, this.text);
    this.#listen(signal);
  }

  update(board, store) {
    show(this.element, !board.readonly && store.begun);
    this.#why = board.controls?.rewind_to ?? "";
    const before = this.#aim.target;
    this.#aim.reach(board.reach, (seq) => store.pending.has(seq));
    if (this.#why !== "" && this.#aim.asked === null) this.#aim.leave();
    if (before !== this.#aim.target) this.#aimed(this.#aim.target);
    this.#show();
  }

  #show() {
    const { from, to, value, words, asked, target } = this.#aim;
    const usable = this.#why === "";
    // A range of nothing would draw its knob at the left.
    setAttribute(this.slider, "min", Math.min(from, to - 1));
    setAttribute(this.slider, "max", to);
    if (this.slider.value !== String(value)) this.slider.value = value;
    setAttribute(this.slider, "aria-valuetext", words);
    setAttribute(this.slider, "aria-disabled", usable ? null : "true");
    setAttribute(this.slider, "aria-busy", asked === null ? null : "true");
    setAttribute(this.slider, "title", usable ? `Rewind: from step ${whole(from)} on` : this.#why);
    setAttribute(this.slider, "aria-describedby", usable ? null : this.text.id);
    setText(this.text, this.#why || words);
    setAttribute(this.element, "data-aiming", target === null ? null : "true");
  }

  #listen(signal) {
    const on = (event, handler) => this.slider.addEventListener(event, handler, { signal });
    on("pointerdown", (event) => {
      this.#dragged = true;
      if (this.#why !== "") this.#no(event);
    });
    on("keydown", (event) => this.#key(event));
    on("input", () => this.#moved());
    // A key that moves the slider ends with this event, too; only a hand that lets go means it.
    on("change", () => this.#dragged && this.#go());
    on("blur", () => this.#aim.asked === null && this.#leave());
  }

  #key(event) {
    this.#dragged = false;
    if (passes(event) && event.key !== "Escape") return;
    if (event.key === "Enter") this.#go();
    else if (event.key === "Escape") this.#leave();
    else if (MOVES.has(event.key) && this.#why !== "") this.#no(event);
  }

  #no(event) {
    event.preventDefault();
    this.slider.focus();
    this.#refuse(this.#why);
  }

  #moved() {
    if (this.#why === "") this.#aim.move(Number(this.slider.value));
    this.#aimed(this.#aim.target);
    this.#show();
  }

  #go() {
    if (this.#why !== "") return this.#refuse(this.#why);
    this.#aim.go((step) => this.#ask("rewind_to", { step }));
    this.#show();
  }

  #leave() {
    this.#aim.leave();
    this.#aimed(null);
    this.#show();
  }
}

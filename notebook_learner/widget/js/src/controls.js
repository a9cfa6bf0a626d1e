// The buttons. A button that cannot be used stays in reach of the keyboard and says why.

import { askOnce, freshId, h, icon, setAttribute, setText, show } from "./dom.js";
import { passes } from "./keys.js";

export class Controls {
  #ask;
  #refuse;
  #signal;
  #buttons = [];

  /** `rank()` is the one to inspect. */
  constructor(ask, refuse, rank, signal) {
    this.#ask = ask;
    this.#refuse = refuse;
    this.#signal = signal;
    this.steps = field("How many steps to take", 10);
    this.back = field("How many training steps to go back", 1);
    this.epochs = field("Epochs: the last one to train", 1);
    this.element = h(
      "div",
      { class: "nl-controls", role: "group", "aria-label": "Training" },
      h("div", { class: "nl-group" }, this.#button("run", "Run", "play"), this.#button("pause", "Pause", "pause"), this.#stopButton()),
      h(
        "div",
        { class: "nl-group" },
        this.#button("step", "Step", "step", () => ({ n: 1 })),
        h("div", { class: "nl-joined" }, this.steps, this.#button("step", "Steps", "steps", () => ({ n: count(this.steps) }))),
        this.#button("step_epoch", "Step epoch", "epoch"),
      ),
      h("div", { class: "nl-group" }, h("div", { class: "nl-joined" }, this.#button("rewind", "Rewind", "rewind", () => ({ n: count(this.back) })), this.back)),
      h("div", { class: "nl-group" }, this.#button("inspect", "Inspect", "inspect", () => ({ rank: rank() })), this.#button("save", "Save", "save")),
      h("label", { class: "nl-group nl-epochs" }, h("span", {}, "Epochs"), this.epochs),
    );
    this.#onEpochs();
    for (const [input, button] of [[this.steps, this.steps.nextElementSibling], [this.back, this.back.previousElementSibling]]) {
      input.addEventListener("keydown", (event) => event.key === "Enter" && !passes(event) && button.click(), { signal });
    }
  }

  update(board) {
    show(this.element, !board.readonly);
    for (const { button, reason, cmd } of this.#buttons) setReason(button, reason, board.controls?.[cmd] ?? "");
    const primary = board.status === "running" ? "pause" : "run";
    for (const { button, cmd } of this.#buttons) button.classList.toggle("nl-primary", cmd === primary);
    const why = board.controls?.epochs ?? "";
    this.epochs.readOnly = why !== "";
    setAttribute(this.epochs, "title", why || "Training ends after this epoch");
    setAttribute(this.epochs, "aria-disabled", why === "" ? null : "true");
    const ours = document.activeElement === this.epochs || this.epochs.getRootNode().activeElement === this.epochs;
    if (!ours && board.num_epochs != null && this.known !== board.num_epochs) this.epochs.value = board.num_epochs;
    if (!ours) this.known = board.num_epochs;
  }

  /** Show which requests have no answer yet. */
  wait(pending, running) {
    const waiting = new Set([...pending.values()].map(({ cmd }) => cmd));
    if (running) waiting.delete("run"); // it does what it was asked for
    for (const { button, cmd } of this.#buttons) setAttribute(button, "aria-busy", waiting.has(cmd) ? "true" : null);
  }

  #button(cmd, label, picture, args = () => ({})) {
    const button = this.#made(cmd, label, picture);
    button.addEventListener("click", () => this.#press(button, cmd, args), { signal: this.#signal });
    return button;
  }

  #stopButton() {
    const button = this.#made("stop", "Stop", "stop");
    const label = { element: button.lastElementChild, text: "Stop" };
    askOnce(button, label, "Really stop?", () => this.#press(button, "stop", () => ({})), this.#signal);
    return button;
  }

  #made(cmd, label, picture) {
    const reason = h("span", { class: "nl-unseen", id: freshId("why") });
    const button = h("button", { class: "nl-button", type: "button", "data-cmd": cmd }, icon(picture), h("span", {}, label));
    this.#buttons.push({ button, reason, cmd });
    // The reason lies next to its button, not in it: it is not part of the name.
    queueMicrotask(() => button.after(reason));
    return button;
  }

  #press(button, cmd, args) {
    const why = button.getAttribute("title");
    if (button.getAttribute("aria-disabled") === "true") return this.#refuse(why);
    this.#ask(cmd, args());
  }

  #onEpochs() {
    const send = () => {
      const wanted = count(this.epochs);
      if (this.epochs.readOnly) return this.#refuse(this.epochs.title);
      if (wanted === this.known) return;
      this.known = wanted;
      this.#ask("set", { num_epochs: wanted });
    };
    this.epochs.addEventListener("change", send, { signal: this.#signal });
  }
}

export function setReason(button, element, reason) {
  const usable = reason === "";
  setAttribute(button, "aria-disabled", usable ? null : "true");
  setAttribute(button, "title", usable ? null : reason);
  setText(element, reason);
  setAttribute(button, "aria-describedby", usable ? null : element.id);
}

const field = (label, value) => h("input", { class: "nl-field", type: "number", min: 1, max: 1_000_000, step: 1, value, "aria-label": label, inputmode: "numeric" });

/** The whole number in a field, which is corrected when there is none. */
function count(input) {
  const wanted = Math.round(Number(input.value));
  const fits = Number.isFinite(wanted) ? Math.min(1_000_000, Math.max(1, wanted)) : 1;
  if (String(fits) !== input.value) input.value = fits;
  return fits;
}

// What stands above a panel whose learner cannot be reached any more, and the way on.

import { h, icon, setAttribute, setText, show } from "./dom.js";
import { losses, resuming } from "./kernel.js";

/** All views of this page, also those of other models, which have this module once more. */
const views = (window[Symbol.for("notebook_learner.views")] ??= new Set());

export function register(view, signal) {
  views.add(view);
  signal.addEventListener("abort", () => views.delete(view));
}

/** Which of the views of one run it is, from the top and from 1: two landmarks of a page have two names. */
export const number = (view) =>
  1 + [...views].filter(({ path, panel }) => path === view.path && panel.isConnected && panel.compareDocumentPosition(view.panel) & Node.DOCUMENT_POSITION_FOLLOWING).length;

/** The view of a living learner in the same directory, the newest. */
const successor = (view) =>
  [...views].reverse().find((other) => other.path !== "" && other.path === view.path && other.alive && other.panel.checkVisibility());

const sentence = (text) => (text ? `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}` : "");

export class Trouble {
  #view;
  #next = null;
  #line = "";

  constructor(view, signal) {
    this.#view = view;
    this.title = h("strong");
    this.how = h("span", {}, "To go on, begin the cell that builds the learner with this, and run it:");
    this.code = h("code");
    this.copied = h("span", { class: "nl-copied" }, "Copy");
    this.copy = h("button", { class: "nl-button nl-copy", type: "button", "data-part": "resume" }, this.code, this.copied);
    this.lost = h("span");
    this.link = h("button", { class: "nl-button nl-small", type: "button", "data-part": "successor" }, "Show its panel");
    this.element = h("div", { class: "nl-trouble", role: "group", "aria-label": "What became of the learner", "data-part": "trouble" }, icon("cross"), h("div", {}, this.title, this.how, this.copy, this.lost, this.link));
    this.copy.addEventListener("click", () => this.#copy(), { signal });
    this.link.addEventListener("click", () => this.#go(), { signal });
  }

  /** Returns whether one line is all that is left to say. */
  update(board, { kind, text }) {
    const gone = kind === "gone";
    const over = gone || kind === "replaced";
    this.#next = over ? successor(this.#view) ?? null : null;
    const follows = this.#next !== null;
    const ways = gone && !follows && !board.readonly;
    show(this.element, over);
    setText(this.title, gone && follows ? "A newer learner has this directory." : sentence(text));
    for (const part of [this.how, this.copy, this.lost]) show(part, ways);
    show(this.link, follows);
    if (ways) {
      this.#line = resuming(board.directory);
      setText(this.code, this.#line);
      setText(this.lost, losses(board));
    }
    setAttribute(this.#view.panel, "data-over", gone && follows ? "followed" : kind === "replaced" ? "replaced" : null);
  }

  async #copy() {
    let done = true;
    try {
      await navigator.clipboard.writeText(this.#line);
    } catch {
      // Pages served without TLS have no clipboard.
      getSelection().selectAllChildren(this.code);
      done = document.execCommand("copy");
    }
    setText(this.copied, done ? "Copied" : "Select it to copy");
  }

  #go() {
    this.#next?.panel.scrollIntoView({ block: "start" });
    this.#next?.panel.focus({ preventScroll: true });
  }
}

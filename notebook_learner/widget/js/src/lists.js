// Checkpoints, the log, what went wrong, and what is trained.

import { Listing, askOnce, h, icon, section, setAttribute, setText, show } from "./dom.js";
import { fillPairs } from "./table.js";

export class Checkpoints extends Listing {
  constructor(ask, signal) {
    super("Checkpoints", "checkpoints", ask, signal);
  }

  update(board) {
    const items = [...(board.checkpoints ?? [])].reverse(); // the newest first
    const why = board.controls?.restore ?? "";
    this.fill(items, () => this.#make(), (row, item) => {
      const [label, note, best, damaged, button] = ["label", "note", "best", "damaged", "button"].map((name) => row.querySelector(`.nl-its-${name}`));
      if (row.dataset.label !== item.label) row.calm();
      row.dataset.label = item.label;
      setText(label, item.place || item.label);
      setText(note, [item.metrics, item.size].filter(Boolean).join(" · "));
      setAttribute(note, "title", item.label);
      show(best, item.best === true);
      show(damaged, item.state !== "complete");
      show(button, !board.readonly);
      const reason = item.state === "complete" ? why : "this checkpoint is damaged";
      setAttribute(button, "aria-disabled", reason === "" ? null : "true");
      setAttribute(button, "title", reason || null);
      if (!button.classList.contains("nl-asking")) setAttribute(button, "aria-label", `Restore ${item.label}`);
    });
  }

  #make() {
    const text = h("span", {}, "Restore");
    const button = h("button", { class: "nl-button nl-small nl-its-button", type: "button", "data-cmd": "restore" }, text);
    const row = h(
      "li",
      {},
      h(
        "div",
        { class: "nl-its" },
        h("div", {}, h("span", { class: "nl-its-label" }), h("span", { class: "nl-badge nl-good nl-its-best" }, "best"), h("span", { class: "nl-badge nl-wrong nl-its-damaged" }, "damaged")),
        h("div", { class: "nl-its-note" }),
      ),
      button,
    );
    const act = () => button.getAttribute("aria-disabled") !== "true" && this.ask("restore", { label: row.dataset.label });
    row.calm = askOnce(button, { element: text, text: "Restore" }, "Really?", act, this.signal);
    return row;
  }
}

const LOG_PADDING = 8; // px, as the style sheet has it

export class Log {
  constructor(signal) {
    this.lines = h("pre", { class: "nl-lines", tabindex: 0, role: "log", "aria-live": "off", "aria-label": "The end of experiment.log" });
    this.element = section("Log", "log", this.lines);
    this.atEnd = true;
    this.size = "";
    this.lines.addEventListener("scroll", () => this.#scrolled(), { signal });
    // Lines that wrap anew in another width push the end out of sight.
    const sized = new ResizeObserver(() => {
      this.size = this.#measured();
      if (this.atEnd) this.#toEnd();
    });
    sized.observe(this.lines);
    signal.addEventListener("abort", () => sized.disconnect());
  }

  update(board) {
    const lines = board.log ?? [];
    show(this.element, lines.length > 0);
    const text = lines.join("\n");
    if (this.lines.textContent === text) return;
    setText(this.lines, text);
    if (this.atEnd) this.#toEnd();
  }

  #scrolled() {
    if (this.size !== this.#measured()) return; // the user did not scroll: the place changed its size
    this.atEnd = this.lines.scrollHeight - this.lines.scrollTop - this.lines.clientHeight < 8;
    this.#cover();
  }

  #measured() {
    return `${this.lines.clientWidth} ${this.lines.clientHeight}`;
  }

  #toEnd() {
    this.lines.scrollTop = this.lines.scrollHeight;
    this.#cover();
  }

  /** At the end no part of a line looks out at the top. */
  #cover() {
    const { scrollHeight, clientHeight } = this.lines;
    const line = parseFloat(getComputedStyle(this.lines).lineHeight);
    const part = this.atEnd && scrollHeight > clientHeight ? (clientHeight - 2 * LOG_PADDING) % line : 0;
    this.lines.style.setProperty("--nl-cover", `${LOG_PADDING + part}px`);
  }
}

export class Failure {
  constructor() {
    this.title = h("strong");
    this.text = h("pre", { class: "nl-lines", tabindex: 0, "aria-label": "Traceback" });
    this.details = h("details", {}, h("summary", {}, "Traceback"), this.text);
    this.element = h("div", { class: "nl-failure", role: "group", "aria-label": "What went wrong", "data-part": "error" }, icon("cross"), h("div", {}, this.title, this.details));
  }

  update(board) {
    show(this.element, Boolean(board.error));
    if (!board.error) return;
    setText(this.title, board.error.title);
    setText(this.text, board.error.text);
    show(this.details, Boolean(board.error.text));
  }
}

/** The model and its settings: in full before the first step, folded afterwards. */
export class Setup {
  constructor() {
    this.list = h("dl", { class: "nl-pairs" });
    this.element = h("details", { class: "nl-section nl-setup", "data-part": "setup" }, h("summary", { class: "nl-heading" }, "Model and settings"), this.list);
    this.begun = null;
  }

  update(board, store) {
    const pairs = [["model", board.model], ["parameters", board.parameters], ...(board.settings ?? [])].filter(([, value]) => value);
    show(this.element, pairs.length > 0);
    fillPairs(this.list, pairs);
    const begun = store.begun;
    if (begun !== this.begun) this.element.open = !begun;
    this.begun = begun;
  }
}

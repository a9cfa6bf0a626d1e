// The rate, the momentum and the weight decay of each group of parameters, as they are now.

import { fill, h, setAttribute, setText, show } from "./dom.js";

const WORDS = { lr: "Learning rate", momentum: "Momentum", weight_decay: "Weight decay" };

/** One entry for each option, and for each group that has another value than the others. */
export function entriesOf(dials) {
  return Object.keys(WORDS).flatMap((key) => {
    const own = dials.map((group, at) => ({ key, at, group: group.name, value: group[key] })).filter(({ value }) => value !== undefined);
    const same = own.length === dials.length && own.every(({ value }) => value === own[0].value);
    return same && own.length > 0 && (own.length === 1 || key !== "lr") ? [{ ...own[0], at: null, group: "" }] : own;
  });
}

export const labelOf = ({ key, group }) => (group ? `${WORDS[key]}, ${group}` : WORDS[key]);

export class Dials {
  #ask;
  #refuse;
  #signal;

  constructor(ask, refuse, signal) {
    this.#ask = ask;
    this.#refuse = refuse;
    this.#signal = signal;
    this.element = h("div", { class: "nl-dials", role: "group", "aria-label": "Optimizer", "data-part": "dials" });
  }

  update(board, store) {
    const entries = entriesOf(board.dials ?? []);
    show(this.element, entries.length > 0);
    fill(this.element, entries, () => this.#make(), (item, entry) => {
      const [label, field] = item.children;
      const why = board.controls?.set ?? "";
      field.entry = entry;
      setText(label, labelOf(entry));
      field.readOnly = why !== "";
      setAttribute(field, "aria-disabled", why === "" ? null : "true");
      setAttribute(field, "title", why || "Counts from the next step on");
      // What a person types stays until it is answered.
      const held = field.getRootNode().activeElement === field || store.pending.has(field.asked);
      if (!held && field.value !== entry.value) field.value = entry.value;
    });
  }

  /** A value that was refused does not stay in its field. */
  answered({ seq, ok }) {
    for (const { lastElementChild: field } of this.element.children) if (field.asked === seq && !ok) field.value = field.entry.value;
  }

  #make() {
    const field = h("input", { class: "nl-field", type: "text", inputmode: "decimal", spellcheck: "false" });
    field.addEventListener("change", () => this.#send(field), { signal: this.#signal });
    field.addEventListener("keydown", ({ key }) => key === "Escape" && (field.value = field.entry.value), { signal: this.#signal });
    return h("label", { class: "nl-dial" }, h("span"), field);
  }

  #send(field) {
    const { key, at, value } = field.entry;
    const wanted = field.value.trim() === "" ? NaN : Number(field.value);
    if (wanted === Number(value)) return;
    if (!field.readOnly && wanted >= 0) field.asked = this.#ask("set", { [at === null ? key : `${key}[${at}]`]: wanted });
    else {
      this.#refuse(field.readOnly ? field.title : `${labelOf(field.entry)}: give a number from 0, such as 1e-3`);
      field.value = value;
    }
  }
}

// The rate, the momentum and the weight decay of each group of parameters, as they are now.

import { fill, h, setText, show } from "./dom.js";

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
  constructor() {
    this.element = h("div", { class: "nl-dials", role: "group", "aria-label": "Optimizer", "data-part": "dials" });
  }

  update(board) {
    const entries = entriesOf(board.dials ?? []);
    show(this.element, entries.length > 0);
    fill(this.element, entries, () => h("label", { class: "nl-dial" }, h("span"), h("b")), (item, entry) => {
      setText(item.firstElementChild, labelOf(entry));
      setText(item.lastElementChild, entry.value);
    });
  }
}

// The metrics as numbers.

import { fill, h, section, setAttribute, setText, show } from "./dom.js";

export const splitNumber = (splits, split) => {
  const known = ["train", "valid", "test"].indexOf(split);
  return known >= 0 ? known : Math.max(0, splits.indexOf(split)) % 4;
};

/** A short line in the colour and the dashes of a split. */
export const swatch = () => h("span", { class: "nl-swatch", "aria-hidden": "true" });

export class Numbers {
  constructor() {
    this.body = h("tbody");
    const heads = ["Metric", "", "Last", "Epoch", "Best"].map((name, at) =>
      at === 1 ? h("th", { scope: "col" }, h("span", { class: "nl-unseen" }, "Split")) : h("th", { scope: "col" }, name),
    );
    this.element = section("Metrics", "numbers", h("div", { class: "nl-scroll", tabindex: 0, role: "group", "aria-label": "Table of metrics" }, h("table", { class: "nl-table" }, h("thead", {}, h("tr", {}, ...heads)), this.body)));
  }

  update(board) {
    const rows = board.table ?? [];
    // Before the first value there are only names, which the tabs and the settings say better.
    show(this.element, rows.some(({ last, epoch, best }) => last || epoch || best));
    const units = rows.map(({ metric, unit }) => (unit ? `${metric} (${unit})` : metric));
    fill(this.body, rows, makeRow, (row, item, at) => {
      const [metric, split, last, epoch, best] = row.children;
      const repeated = at > 0 && rows[at - 1].metric === item.metric;
      row.classList.toggle("nl-repeated", repeated);
      setText(metric.firstElementChild, units[at]);
      setAttribute(metric.firstElementChild, "title", units[at]);
      setAttribute(split.firstElementChild, "data-split", splitNumber(["train", "valid"], item.split));
      setText(split.lastElementChild, item.split);
      setText(last, item.last);
      setText(epoch, item.epoch);
      setText(best.firstElementChild, item.best);
      setText(best.lastElementChild, item.where);
    });
  }
}

const makeRow = () =>
  h(
    "tr",
    {},
    h("th", { scope: "row" }, h("span")),
    h("td", { class: "nl-split" }, swatch(), h("span")),
    h("td", { class: "nl-last" }),
    h("td"),
    h("td", {}, h("span"), h("small")),
  );

/** The sets that were evaluated: the name of each over its values, as names are long and the place is narrow. */
export class Evaluated {
  constructor() {
    this.body = h("tbody");
    const heads = ["Set and metric", "Value"].map((name) => h("th", { scope: "col" }, name));
    this.element = section("Evaluated", "evaluated", h("div", { class: "nl-scroll", tabindex: 0, role: "group", "aria-label": "Table of evaluated sets" }, h("table", { class: "nl-table nl-sets" }, h("thead", {}, h("tr", {}, ...heads)), this.body)));
  }

  update(board) {
    const sets = board.evaluated ?? [];
    const rows = sets.flatMap(({ name, values, texts, where, batches }) => [
      { kind: "set", name, note: [`${batches} ${batches === "1" ? "batch" : "batches"}`, where && `weights of ${where}`].filter(Boolean).join(", ") },
      ...values.map(([metric, value]) => ({ kind: "value", name: metric, value })),
      ...(texts ?? []).map(([metric, text]) => ({ kind: "words", name: metric, value: text })),
    ]);
    show(this.element, rows.length > 0);
    fill(this.body, rows, makeSetRow, (row, { kind, name, note, value }) => {
      const [head, cell] = row.children;
      const isSet = kind === "set";
      row.dataset.kind = kind;
      setAttribute(head, "scope", isSet ? "rowgroup" : "row");
      setAttribute(head, "colspan", isSet ? "2" : null);
      setText(head.firstElementChild, name);
      setText(head.lastElementChild, note ?? "");
      show(cell, !isSet);
      setText(cell, value ?? "");
    });
  }
}

const makeSetRow = () => h("tr", {}, h("th", {}, h("span"), h("small")), h("td"));

/** The processes of a training on several devices. */
export class Ranks {
  constructor() {
    this.body = h("tbody");
    const heads = ["Rank", "Memory", "Step", "State"].map((name) => h("th", { scope: "col" }, name));
    this.element = section("Ranks", "ranks", h("div", { class: "nl-scroll", tabindex: 0, role: "group", "aria-label": "Table of ranks" }, h("table", { class: "nl-table nl-ranks" }, h("thead", {}, h("tr", {}, ...heads)), this.body)));
  }

  update(board) {
    const ranks = board.ranks ?? [];
    show(this.element, ranks.length > 0);
    fill(this.body, ranks, makeRank, (row, { rank, device, where, memory, step, alive }) => {
      const [head, used, at, state] = row.children;
      setText(head.firstElementChild, `${rank} · ${device}`);
      setText(head.lastElementChild, where);
      setText(used, memory);
      setText(at, step);
      setText(state.firstElementChild, alive ? "alive" : "dead");
      setAttribute(state.firstElementChild, "class", `nl-badge ${alive ? "nl-good" : "nl-wrong"}`);
    });
  }
}

const makeRank = () => h("tr", {}, h("th", { scope: "row" }, h("span"), h("small")), h("td"), h("td"), h("td", {}, h("span")));

/** Metrics that are words: memory, a device's state. */
export class Texts {
  constructor() {
    this.list = h("dl", { class: "nl-pairs" });
    this.element = section("More", "texts", this.list);
  }

  update(board) {
    show(this.element, (board.texts ?? []).length > 0);
    fillPairs(this.list, board.texts ?? []);
  }
}

/** Names and values, two and two. */
export function fillPairs(list, pairs) {
  const make = () => h("div", {}, h("dt"), h("dd"));
  fill(list, pairs, make, (pair, [name, value]) => {
    setText(pair.firstElementChild, name);
    setText(pair.lastElementChild, value);
  });
}

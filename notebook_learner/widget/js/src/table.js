// The metrics as numbers.

import { fill, h, section, setAttribute, setText, show } from "./dom.js";

export const splitNumber = (splits, split) => {
  const known = ["train", "valid", "test"].indexOf(split);
  return known >= 0 ? known : Math.max(0, splits.indexOf(split)) % 4;
};

/** A short line in the colour and the dashes of a split. */
export const swatch = () => h("span", { class: "nl-swatch", "aria-hidden": "true" });

/** The name of each metric over its splits, as names are long and the place is narrow. */
export class Numbers {
  constructor() {
    this.body = h("tbody");
    const heads = ["Metric", "Epoch avg", "Best (epoch)"].map((name) => h("th", { scope: "col", colspan: name.startsWith("Best") ? "2" : null }, name));
    heads.push(h("th", { scope: "col" }, "Last batch"));
    this.element = section("Metrics", "numbers", h("div", { class: "nl-scroll", tabindex: 0, role: "group", "aria-label": "Table of metrics" }, h("table", { class: "nl-table" }, h("thead", {}, h("tr", {}, ...heads)), this.body)));
  }

  update(board) {
    const table = board.table ?? [];
    // Before the first value there are only names, which the tabs and the settings say better.
    show(this.element, table.some(({ last, epoch, best }) => last || epoch || best));
    const rows = table.flatMap((row, at) => (table[at - 1]?.metric === row.metric ? [row] : [{ metric: row.metric, unit: row.unit }, row]));
    fill(this.body, rows, makeRow, (row, { metric, unit, split, last, epoch, so_far, best, where }) => {
      const isName = split === undefined;
      const [head, ...cells] = row.children;
      row.dataset.kind = isName ? "metric" : "split";
      setAttribute(head, "scope", isName ? "rowgroup" : "row");
      setAttribute(head, "colspan", isName ? "5" : null);
      show(head.firstElementChild, !isName);
      setAttribute(head.firstElementChild, "data-split", isName ? null : splitNumber(["train", "valid"], split));
      setText(head.lastElementChild, isName ? (unit ? `${metric} (${unit})` : metric) : split);
      cells.forEach((cell) => show(cell, !isName));
      const [epochCell, bestCell, whereCell, lastCell] = cells;
      setText(lastCell, last ?? "");
      show(epochCell.firstElementChild, so_far === true && Boolean(epoch));
      setText(epochCell.lastElementChild, epoch ?? "");
      setText(bestCell, best ?? "");
      setText(whereCell, where ?? "");
    });
  }
}

const makeRow = () =>
  h("tr", {}, h("th", {}, swatch(), h("span")), h("td", { class: "nl-epoch" }, h("small", {}, "so far"), h("span")), h("td"), h("td", { class: "nl-best-at" }), h("td", { class: "nl-batch" }));

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
    const heads = ["Rank", "Memory", "Step", "Own pace", "State"].map((name) => h("th", { scope: "col" }, name));
    this.element = section("Ranks", "ranks", h("div", { class: "nl-scroll", tabindex: 0, role: "group", "aria-label": "Table of ranks" }, h("table", { class: "nl-table nl-ranks" }, h("thead", {}, h("tr", {}, ...heads)), this.body)));
  }

  update(board) {
    const ranks = board.ranks ?? [];
    show(this.element, ranks.length > 0);
    fill(this.body, ranks, makeRank, (row, { rank, device, where, memory, step, rate, alive }) => {
      const [head, used, at, pace, state] = row.children;
      setText(head.firstElementChild, `${rank} · ${device}`);
      setText(head.lastElementChild, where);
      setText(used, memory);
      setText(at, step);
      setText(pace, rate);
      setText(state.firstElementChild, alive ? "alive" : "dead");
      setAttribute(state.firstElementChild, "class", `nl-badge ${alive ? "nl-good" : "nl-wrong"}`);
    });
  }
}

const makeRank = () => h("tr", {}, h("th", { scope: "row" }, h("span"), h("small")), h("td"), h("td"), h("td"), h("td", {}, h("span")));

/** Metrics that are words: memory, a device's state. */
export class Texts {
  constructor() {
    this.list = h("dl", { class: "nl-pairs" });
    this.element = section("More", "texts", this.list);
  }

  update(board) {
    const tabs = new Set((board.sheets ?? []).map(({ name }) => name)); // what has a tab is not said twice
    const texts = (board.texts ?? []).filter(([name]) => !tabs.has(name));
    show(this.element, texts.length > 0);
    fillPairs(this.list, texts);
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

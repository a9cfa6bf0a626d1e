// The tabs that show no curve: a confusion matrix, a picture, a text, or samples with what the model says of them.

import { fill, h, setAttribute, setText, show } from "./dom.js";

const SHORT = 4; // letters of a class that stand above a column

/** How large a share of its row a cell of a matrix is; a class without samples has no shares. */
export const shares = (counts, due) => counts.map((row, at) => row.map((count) => (due[at] > 0 ? count / due[at] : 0)));

export class Sheets {
  constructor() {
    this.element = h("div", { class: "nl-sheets", "data-part": "sheets", hidden: true });
  }

  /** Show the sheets of one tab, a heading over each; nothing for undefined. */
  update(tab) {
    show(this.element, tab !== undefined);
    if (tab === undefined || this.tab === tab) return;
    this.tab = tab;
    fill(this.element, tab.parts, makePart, (part, told) => {
      const [heading, frame] = part.children;
      setText(heading.children[0], [told.split, told.where].filter(Boolean).join(", "));
      setText(heading.children[1], [told.right && `${told.right} right`, told.left_out].filter(Boolean).join(" · "));
      setAttribute(frame, "aria-label", `${tab.name}, ${told.split || told.where}`);
      if (frame.dataset.kind !== told.kind) {
        frame.dataset.kind = told.kind;
        frame.replaceChildren(MAKE[told.kind]());
      }
      CHANGE[told.kind](frame.firstElementChild, told, tab.name);
    });
  }
}

const makePart = () => h("div", {}, h("div", { class: "nl-sheet-head" }, h("b"), h("small")), h("div", { class: "nl-scroll", tabindex: 0, role: "group" }));

const table = (name) => h("table", { class: `nl-table ${name}` }, h("thead", {}, h("tr")), h("tbody"));

const MAKE = {
  matrix: () => table("nl-matrix"),
  samples: () => table("nl-samples"),
  picture: () => h("img", { class: "nl-picture" }),
  text: () => h("pre", { class: "nl-said" }),
};

const CHANGE = {
  matrix: fillMatrix,
  samples: fillSamples,
  picture: (image, { cell }, name) => {
    setAttribute(image, "src", cell.picture);
    setAttribute(image, "alt", name);
  },
  text: (pre, { text }) => setText(pre, text),
};

/** A row for each true class, a column for each answer; the colour is the share of the row. */
function fillMatrix(element, { names, counts, due }) {
  const [head, body] = element.children;
  setAttribute(element, "data-long", names.some((name) => name.length > SHORT) ? "true" : null);
  fill(head.firstElementChild, ["true \\ answered", ...names], () => h("th", { scope: "col" }), setText);
  const parts = shares(counts, due);
  fill(body, names, () => h("tr", {}, h("th", { scope: "row" })), (row, name, at) => {
    setText(row.firstElementChild, name);
    while (row.children.length > names.length + 1) row.lastElementChild.remove();
    while (row.children.length < names.length + 1) row.append(h("td"));
    names.forEach((other, column) => {
      const cell = row.children[column + 1];
      const count = counts[at][column];
      setText(cell, count || "");
      setAttribute(cell, "title", `${other} for ${name}: ${count} of ${due[at]}`);
      setAttribute(cell, "data-right", at === column);
      cell.style.setProperty("--nl-share", parts[at][column].toFixed(3));
    });
  });
}

function fillSamples(element, { rows, before }) {
  const [head, body] = element.children;
  const heads = ["Sample", "Target", "Prediction", ...(before ? [before] : []), "Loss"];
  fill(head.firstElementChild, heads, () => h("th", { scope: "col" }), setText);
  fill(body, rows, () => h("tr", {}, h("th", { scope: "row" }), h("td"), h("td"), h("td"), h("td", { class: "nl-its-loss" })), (row, sample, at) => {
    const [given, target, prediction, earlier, loss] = row.children;
    setAttribute(row, "data-wrong", sample.right === false);
    fillCell(given, sample.given, `sample ${at + 1}`);
    fillCell(target, sample.target, `target of sample ${at + 1}`);
    fillCell(prediction, sample.prediction, `prediction for sample ${at + 1}`, sample.right === false ? "wrong" : "");
    show(earlier, Boolean(before));
    fillCell(earlier, sample.before, `earlier prediction for sample ${at + 1}`);
    setText(loss, sample.loss);
  });
}

function fillCell(cell, { text, picture }, alt, badge = "") {
  if (cell.children.length === 0) cell.append(h("img"), h("span"), h("span", { class: "nl-badge nl-wrong" }));
  const [image, words, mark] = cell.children;
  show(image, picture !== undefined);
  setAttribute(image, "src", picture);
  setAttribute(image, "alt", alt);
  show(words, picture === undefined);
  setText(words, text ?? "");
  show(mark, badge !== "");
  setText(mark, badge);
}

import assert from "node:assert/strict";
import { test } from "node:test";
import { arranged } from "../src/grid.js";
import { keep, kept } from "../src/keep.js";

const METRICS = [
  { name: "Loss", better: "lower" },
  { name: "Accuracy", better: "higher" },
  { name: "Learning Rate", better: null },
  { name: "Hinge loss", better: "lower" },
];
const titled = (groups) => groups.map(({ title, metrics }) => [title, ...metrics.map(({ name }) => name)]);

test("metrics stand in groups", () => {
  const plain = titled(arranged(METRICS, { pinned: [], hidden: [] }));
  assert.deepEqual(plain, [["Lower is better", "Loss", "Hinge loss"], ["Higher is better", "Accuracy"], ["Others", "Learning Rate"]]);
});

test("pinned metrics stand in front, hidden ones nowhere, and names of other runs do no harm", () => {
  const pinned = titled(arranged(METRICS, { pinned: ["Hinge loss", "gone"], hidden: ["Accuracy"] }));
  assert.deepEqual(pinned, [["Pinned", "Hinge loss"], ["Lower is better", "Loss"], ["Others", "Learning Rate"]]);
});

test("a search finds parts of names, in capitals or not", () => {
  assert.deepEqual(titled(arranged(METRICS, { pinned: [], hidden: [] }, "LOSS")), [["Lower is better", "Loss", "Hinge loss"]]);
});

test("a search finds none of the hidden", () => {
  assert.deepEqual(arranged(METRICS, { pinned: [], hidden: ["Loss", "Hinge loss"] }, "loss"), []);
});

test("what a browser kept is used if it is of the right kind", (t) => {
  const held = new Map();
  globalThis.localStorage = { getItem: (name) => held.get(name) ?? null, setItem: (name, value) => held.set(name, value) };
  t.after(() => delete globalThis.localStorage);
  keep("folded", ["log"]);
  assert.deepEqual(kept("folded", []), ["log"]);
  for (const broken of ['"log"', "{}", "null", "[", "3"]) {
    held.set([...held.keys()][0], broken);
    assert.deepEqual(kept("folded", []), [], broken);
  }
});

test("a page without storage goes on", (t) => {
  t.after(() => delete globalThis.localStorage);
  globalThis.localStorage = { getItem: () => { throw new Error("denied"); }, setItem: () => { throw new Error("denied"); } };
  keep("folded", ["log"]);
  assert.deepEqual(kept("folded", []), ["log"], "until the page is closed");
  assert.deepEqual(kept("other", []), []);
});

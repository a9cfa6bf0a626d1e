import assert from "node:assert/strict";
import { test } from "node:test";

import { shares } from "../src/sheets.js";

test("a cell's share is that of its true class", () => {
  assert.deepEqual(shares([[3, 1], [0, 4]], [4, 4]), [[0.75, 0.25], [0, 1]]);
});

test("a class without samples has no shares", () => {
  assert.deepEqual(shares([[0, 0], [1, 1]], [0, 2]), [[0, 0], [0.5, 0.5]]);
});

test("a row that is cut to some classes keeps the shares of the whole class", () => {
  assert.deepEqual(shares([[2]], [8]), [[0.25]]);
});

test("an empty matrix has none", () => assert.deepEqual(shares([], []), []));

test("shares lie between 0 and 1", () => {
  const found = shares([[5, 0, 1], [2, 2, 2], [0, 0, 9]], [6, 6, 9]).flat();
  assert.ok(found.every((share) => share >= 0 && share <= 1));
});

test("a row's shares sum to 1 if all its classes are shown", () => {
  for (const row of shares([[5, 0, 1], [2, 2, 2]], [6, 6])) assert.ok(Math.abs(row.reduce((a, b) => a + b) - 1) < 1e-12);
});

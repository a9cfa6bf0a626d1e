import assert from "node:assert/strict";
import test from "node:test";
import { labelOf, nearest, offerOf, placeOf, pointsOf } from "../src/branches.js";
import { Series } from "../src/series.js";

const series = (ys, from = 1) => Series.fromBuckets(Float64Array.from([...ys.map((_, at) => from + at), ...ys, ...ys, ...ys]), ys.length);

test("a line is called by its number and its changes, as far as there is room", () => {
  assert.equal(labelOf({ name: "2", changes: "" }), "branch 2");
  assert.equal(labelOf({ name: "2", changes: "lr = 0.1" }), "2 · lr = 0.1");
});

test("a label that is too long for the picture ends in dots, and not in a space", () => {
  assert.equal(labelOf({ name: "12", changes: "lr = 0.1; weight_decay = 0.01" }), "12 · lr = 0.1; weight_dec…");
  assert.equal(labelOf({ name: "1", changes: "twenty letters here: and more" }), "1 · twenty letters here:…");
});

test("the button says how many steps are taken again, where that is known", () => {
  assert.equal(offerOf({ name: "1", again: 1200 }), "Go to the end of branch 1 (1,200 steps replayed)");
  assert.equal(offerOf({ name: "1", again: 1 }), "Go to the end of branch 1 (1 step replayed)");
  assert.equal(offerOf({ name: "1", again: 0 }), "Go to the end of branch 1");
});

test("the pointer means the line that runs near it, between its points, too", () => {
  const lines = [
    { name: "1", x: [0, 100], y: [50, 50] },
    { name: "2", x: [0, 100], y: [70, 90] },
    { name: "3", x: [200], y: [10] },
  ];
  assert.equal(nearest(lines, 60, 55), "1");
  assert.equal(nearest(lines, 50, 78), "2");
  assert.equal(nearest(lines, 60, 64), null);
  assert.equal(nearest(lines, 203, 12), "3");
  assert.equal(nearest(lines, 120, 50), null);
  assert.equal(nearest([{ name: "1", x: [], y: [] }], 0, 0), null);
});

test("a label stands behind the end of its line, or above it, or below, and on no other one", () => {
  const line = { x: [0, 50, 100], y: [40, 30, 40] };
  const right = placeOf(line, 60, [], 400, 100);
  assert.deepEqual([right.left, right.top], [105, 34]);
  const above = placeOf(line, 60, [], 120, 100);
  assert.deepEqual([above.left, above.top], [40, 15]);
  const below = placeOf(line, 60, [above], 120, 100);
  assert.deepEqual([below.left, below.top], [40, 43]);
  assert.equal(placeOf(line, 60, [above, below], 120, 100), null);
  assert.equal(placeOf({ x: [0, 100], y: [5, 5] }, 60, [], 120, 100).top, 8);
});

test("a branch is drawn as the curve before it: its means, smoothed over as many steps", () => {
  const { x, y } = pointsOf(series([4, 0, 4, 0], 7), [1, 20], 600, 0);
  assert.deepEqual([x, y], [[7, 8, 9, 10], [4, 0, 4, 0]]);
  const smoothed = pointsOf(series([4, 0, 4, 0], 7), [1, 20], 600, 1000).y;
  assert.ok(Math.abs(smoothed[3] - 2) < 0.01);
  const long = pointsOf(series(Array.from({ length: 5000 }, (_, at) => at)), [1, 5000], 600, 0);
  assert.ok(long.x.length < 1300);
});

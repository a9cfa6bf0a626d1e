import assert from "node:assert/strict";
import test from "node:test";
import { bandOf } from "../src/band.js";

test("a band covers each point of its line, and what lies between two of them", () => {
  const xs = Array.from({ length: 1000 }, (_, at) => at / 4);
  const ys = xs.map((_, at) => Math.sin(at * 7) * 50 + (at === 501 ? 400 : 0));
  const [run, ...more] = bandOf(xs, ys, 0, 999, 2);
  assert.equal(more.length, 0);
  assert.equal(run.length, 125);
  xs.forEach((x, at) => {
    const [, low, high] = run.find(([left]) => x >= left && x < left + 2);
    assert.ok(low <= ys[at] && ys[at] <= high);
  });
  run.slice(1).forEach(([, low, high], at) => assert.ok(low <= run[at][2] && high >= run[at][1], "neighbours touch"));
  assert.ok(Math.max(...run.map(([, , high]) => high)) > 350);
});

test("what is not finite is a gap in the band, and points of other lines are none", () => {
  const runs = bandOf([0, 1, 2, 3, 4, 5], [1, undefined, 2, null, 5, 6], 0, 5, 2);
  assert.deepEqual(runs, [[[0, 1, 1], [2, 1, 2]], [[4, 5, 6]]]);
});

test("points of one column become its lowest and its highest", () => {
  assert.deepEqual(bandOf([0, 0.5, 1], [3, -1, 2], 0, 2, 2), [[[0, -1, 3]]]);
});

test("a column begins where the line comes from", () => {
  assert.deepEqual(bandOf([0, 2, 4], [10, 0, 5], 0, 2, 2), [[[0, 10, 10], [2, 0, 10], [4, 0, 5]]]);
});

test("only the points from one index to another are taken", () => {
  assert.deepEqual(bandOf([0, 2, 4, 6], [9, 1, 2, 9], 1, 2, 2), [[[2, 1, 1], [4, 1, 2]]]);
});

test("a single point is a run of its own", () => assert.deepEqual(bandOf([7], [3], 0, 0, 2), [[[6, 3, 3]]]));

test("a line without a point has no run", () => assert.deepEqual(bandOf([0, 1], [null, undefined], 0, 1, 2), []));

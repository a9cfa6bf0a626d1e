import assert from "node:assert/strict";
import test from "node:test";
import { align, besides, bucketWidth, downsample, extent, memoryOf, recentFrom, Series, smooth, tabulate } from "../src/series.js";

function grown(values, first = 1) {
  const series = new Series();
  values.forEach((value, at) => series.append(first + at, value));
  return series;
}

const finiteOf = (found) => found.y.filter((value) => value !== null);

test("a spike of one step in a million is drawn at its full height", () => {
  const series = grown(new Float64Array(1_000_000).fill(1));
  series.append(1_000_001, 1);
  series.low[612_345] = series.high[612_345] = series.mean[612_345] = 99;
  const found = downsample(series, 1, 1_000_001, 900);
  assert.equal(Math.max(...finiteOf(found)), 99);
  const at = found.x[found.y.indexOf(99)];
  assert.ok(Math.abs(at - 612_346) <= bucketWidth(1, 1_000_001, 900), `drawn at ${at}`);
});

test("a dip is kept as well as a spike when both fall into one bucket, in their order", () => {
  const series = grown(new Float64Array(10_000).fill(5));
  series.append(10_001, 5);
  for (const [at, value] of [[4001, -7], [4003, 30]]) series.low[at] = series.high[at] = series.mean[at] = value;
  const { y } = downsample(series, 1, 10_001, 400);
  assert.ok(y.indexOf(-7) >= 0 && y.indexOf(30) === y.indexOf(-7) + 1);
});

test("a million points cost one look at each, and leave a few for each pixel", () => {
  const series = grown(new Float64Array(1_000_000).fill(0).map((_, at) => Math.sin(at)));
  const found = downsample(series, 1, 1_000_000, 1000);
  assert.ok(found.visited <= 1_000_002, `${found.visited} points looked at`);
  assert.ok(found.x.length <= 4 * 1000, `${found.x.length} points drawn`);
});

test("a window of a long run costs only what is in it", () => {
  const series = grown(new Float64Array(1_000_000));
  assert.ok(downsample(series, 500_000, 501_000, 1000).visited <= 1004);
});

test("few points are drawn as they are", () => {
  const found = downsample(grown([3, 1, 2]), 1, 3, 800);
  assert.deepEqual([found.x, found.y, found.mean], [[1, 2, 3], [3, 1, 2], [3, 1, 2]]);
});

test("what is not finite is a gap, and is listed", () => {
  const found = downsample(grown([1, NaN, 3, Infinity, 5]), 1, 5, 800);
  assert.deepEqual(found.y, [1, null, 3, null, 5]);
  assert.deepEqual(found.bad, [2, 4]);
  assert.deepEqual(found.mean, [1, 3, 5]);
});

test("a single NaN among many points stays a gap, and the values around it stay", () => {
  const values = new Float64Array(50_000).fill(2);
  values[20_000] = NaN;
  values[20_001] = 40;
  const found = downsample(grown(values), 1, 50_000, 500);
  assert.ok(found.y.includes(null));
  assert.ok(found.y.includes(40));
  assert.equal(found.bad.length, 1);
});

test("a curve of nothing but NaN is drawn as nothing, and does not fail", () => {
  const found = downsample(grown(new Float64Array(5000).fill(NaN)), 1, 5000, 300);
  assert.deepEqual(finiteOf(found), []);
  assert.equal(extent([found.y], false), null);
});

test("places on the x axis only ever grow", () => {
  for (const points of [3, 700, 20_000]) {
    const series = grown(Float64Array.from({ length: points }, (_, at) => (at % 97 === 0 ? NaN : Math.cos(at))));
    const { x } = downsample(series, 1, points, 333);
    assert.ok(x.every((value, at) => at === 0 || value > x[at - 1]), `of ${points} points`);
  }
});

test("buckets of a snapshot show both of their extremes", () => {
  const numbers = Float64Array.from([100, 200, 300, /* low */ 1, 2, 3, /* high */ 9, 8, 7, /* mean */ 4, 5, 6]);
  const found = downsample(Series.fromBuckets(numbers, 3), 100, 300, 800);
  for (const value of [1, 9, 2, 8, 3, 7]) assert.ok(found.y.includes(value), `${value} is missing`);
  assert.ok(found.x.every((value, at) => at === 0 || value > found.x[at - 1]));
  assert.deepEqual(found.mean, [4, 5, 6]);
});

test("buckets do not move while a run grows", () => {
  const series = grown(Float64Array.from({ length: 9000 }, (_, at) => Math.sin(at / 7)));
  const before = downsample(series, 1, 9000, 400);
  for (let x = 9001; x <= 9100; x++) series.append(x, 0);
  const after = downsample(series, 1, 9100, 400);
  assert.deepEqual(after.x.slice(0, 500), before.x.slice(0, 500));
  assert.deepEqual(after.y.slice(0, 500), before.y.slice(0, 500));
});

test("the same step again replaces its value", () => {
  const series = grown([5, 6]);
  series.append(2, 7);
  assert.deepEqual([series.length, series.mean[1], series.x[1]], [2, 7, 2]);
});

test("an earlier step cuts off what came after it", () => {
  const series = grown([1, 2, 3, 4, 5]);
  series.append(3, 30);
  assert.deepEqual([...series.mean.subarray(0, series.length)], [1, 2, 30]);
});

test("a series that has grown too long is thinned and keeps its extremes", () => {
  const series = new Series(4, 1000);
  for (let x = 1; x <= 5000; x++) series.append(x, x === 77 ? -50 : x === 90 ? NaN : 1);
  assert.ok(series.length <= 1000);
  const kept = series.low.subarray(0, series.length);
  assert.equal(Math.min(...[...kept].filter(isFinite)), -50);
  assert.equal(series.x[series.length - 1], 5000);
  assert.ok(series.x.subarray(0, series.length).every((x, at, all) => at === 0 || x > all[at - 1]));
});

test("smoothing starts without bias, follows slowly, and off means off", () => {
  const x = [1, 2, 3, 4];
  assert.deepEqual(smooth(x, [4, 4, 4, 4], 10), [4, 4, 4, 4]);
  assert.deepEqual(smooth(x, [1, 9, 1, 9], 0), [1, 9, 1, 9]);
  const [first, second] = smooth(x, [0, 10, 0, 10], 10);
  assert.equal(first, 0);
  assert.ok(second > 5 && second < 6, String(second));
});

test("smoothing counts steps, not points", () => {
  const near = smooth([1, 2], [0, 1], 10)[1];
  const far = smooth([1, 1001], [0, 1], 10)[1];
  assert.ok(near < 0.6 && far > 0.999, `${near}, ${far}`);
});

test("the slider's memory grows with it and with what is shown", () => {
  assert.equal(memoryOf(0, 1000), 0);
  assert.equal(memoryOf(0.3, 24), 0); // of so few steps, less than half a one
  assert.ok(memoryOf(0.5, 1000) < memoryOf(1, 1000));
  assert.equal(memoryOf(0.5, 2000), 2 * memoryOf(0.5, 1000));
});

test("the recent window is an epoch, and never less than 100 steps", () => {
  assert.equal(recentFrom(1000, [300, 600, 900]), 700);
  assert.equal(recentFrom(1000, []), 900);
  assert.equal(recentFrom(50, [10, 20]), 0);
});

test("lines of different steps share one x column", () => {
  const found = align([{ x: [1, 2, 3], y: [1, null, 3] }, { x: [2, 5], y: [7, 8] }]);
  assert.deepEqual(found[0], [1, 2, 3, 5]);
  assert.deepEqual([found[1][0], found[1][1], found[1][2], found[1][3]], [1, null, 3, undefined]);
  assert.deepEqual([found[2][0], found[2][1], found[2][3]], [undefined, 7, 8]);
});

test("a logarithmic scale leaves out what it cannot show", () => {
  assert.deepEqual(extent([[0, -1, 2, null, undefined, 8]], true), [2, 8]);
  assert.deepEqual(extent([[0, -1, 2]], false), [-1, 2]);
  assert.equal(extent([[0, -1]], true), null);
});

test("the table says mean and extremes of each stretch", () => {
  const rows = tabulate([grown([1, 2, 3, 4]), grown([9], 4)], 1, 4, 2);
  assert.deepEqual(rows, [
    { from: 1, to: 2, cells: [{ low: 1, high: 2, mean: 1.5 }, null] },
    { from: 3, to: 4, cells: [{ low: 3, high: 4, mean: 3.5 }, { low: 9, high: 9, mean: 9 }] },
  ]);
});

test("the nearest point is found from either side", () => {
  const series = grown([1, 2, 3], 10);
  assert.deepEqual([0, 10.4, 10.6, 99].map((x) => series.nearest(x)), [0, 0, 1, 2]);
  assert.equal(new Series().nearest(3), -1);
});

test("branches widen the picture, but never take more of it than the curves have", () => {
  assert.deepEqual(besides([1, 3], [0.5, 3.5], false), [0.5, 3.5]);
  assert.deepEqual(besides([1, 3], [-100, 1e9], false), [0, 4]);
  assert.deepEqual(besides([1, 3], [1.5, 2], false), [1, 3]);
  assert.deepEqual(besides([1, 3], null, false), [1, 3]);
  assert.deepEqual(besides(null, [1, 3], false), [1, 3]);
  assert.deepEqual(besides([2, 2], [0, 9], false), [0, 9]);
  const [low, high] = besides([1, 100], [1e-9, 1e9], true);
  assert.ok(Math.abs(low - 0.1) < 1e-9 && Math.abs(high - 1000) < 1e-6);
});

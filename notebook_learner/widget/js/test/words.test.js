import assert from "node:assert/strict";
import test from "node:test";
import { isAlarming, isWide, whenExact } from "../src/debugger.js";
import { logTicks, number, steps, ticks } from "../src/format.js";
import { apart, epochLabels, epochOf, epochSpans, nearestMarks } from "../src/marks.js";
import { kindOf } from "../src/theme.js";

const epoch = (x, n) => ({ x, kind: "epoch", text: `epoch ${n}` });

test("values are written with the digits that count", () => {
  const written = [0.31234, 12.3456, 1234.5, 1e-7, 0.0010264, -0.00099996, 1.5e6, 0, NaN, Infinity, -2.5, undefined].map((value) => number(value));
  assert.deepEqual(written, ["0.3123", "12.35", "1,235", "1e-7", "1.026e-3", "−1e-3", "1.5e6", "0", "nan", "inf", "−2.500", "–"]);
});

test("an axis tells neighbours apart and says no more", () => {
  assert.deepEqual(ticks([0, 0.5, 1]), ["0", "0.5", "1.0"]);
  assert.deepEqual(ticks([0.25, 0.5, 0.75]), ["0.25", "0.50", "0.75"]);
  assert.deepEqual(ticks([0.02, 0.04]), ["0.02", "0.04"]);
  assert.deepEqual(ticks([100, 200]), ["100", "200"]);
  assert.deepEqual(steps([0, 5000, 10_000]), ["0", "5k", "10k"]);
  assert.deepEqual(steps([0, 0.5, 1]), ["0", "", "1"]);
});

test("a logarithmic axis has lines within its range", () => {
  assert.deepEqual(logTicks(0.01, 100), [0.01, 0.1, 1, 10, 100].map((value) => value));
  assert.ok(logTicks(0.2, 0.9).length >= 4);
  assert.ok(logTicks(1e-12, 1e12).length <= 10);
});

test("epochs are stretches between their ends, and the last one goes on", () => {
  const spans = epochSpans([epoch(10, 1), epoch(20, 2)], 3, [1, 25]);
  assert.deepEqual(spans.map(({ from, to, number }) => [from, to, number]), [[0, 10, 1], [10, 20, 2], [20, 25, 3]]);
  assert.equal(epochOf(spans, 10), 1);
  assert.equal(epochOf(spans, 11), 2);
  assert.equal(epochOf(spans, 99), null);
});

test("an epoch whose beginning was forgotten has no label", () => {
  const spans = epochSpans([epoch(3510, 351), epoch(3520, 352)], 353, [1, 3525]);
  assert.deepEqual(epochLabels(spans, [1, 3525], 6e5).map(({ text }) => text), ["352", "353"]);
});

test("as many epochs are labelled as there is room for", () => {
  const marks = Array.from({ length: 1000 }, (_, at) => epoch((at + 1) * 10, at + 1));
  const labels = epochLabels(epochSpans(marks, 1000, [1, 10_000]), [1, 10_000], 600);
  assert.ok(labels.length > 5 && labels.length <= 20, `${labels.length} labels`);
  assert.deepEqual(epochLabels([], [0, 1], 600), []);
});

test("marks near the pointer are named, ends of epochs are not among them", () => {
  const marks = [epoch(10, 1), { x: 11, kind: "pause", text: "paused" }, { x: 50, kind: "pause", text: "later" }];
  assert.deepEqual(nearestMarks(marks, 10, 2).map(({ text }) => text), ["paused"]);
});

test("the theme is the notebook's, and the system's only where there is no other", () => {
  const page = (attributes, className = "") => ({ className, getAttribute: (name) => attributes[name] ?? null });
  const plain = page({});
  assert.equal(kindOf(page({ "data-jp-theme-light": "false" }), plain, false), "dark");
  assert.equal(kindOf(page({ "data-jp-theme-light": "true" }), plain, true), "light");
  assert.equal(kindOf(page({ "data-vscode-theme-kind": "vscode-dark" }), plain, false), "dark");
  assert.equal(kindOf(page({ "data-vscode-theme-kind": "vscode-high-contrast-light" }), plain, true), "light");
  assert.equal(kindOf(page({}, "vscode-light"), plain, true), "light");
  assert.equal(kindOf(plain, page({ theme: "dark" }), false), "dark");
  assert.equal(kindOf(plain, page({ theme: "default" }), true), "light");
  assert.equal(kindOf(page({ "data-theme": "light" }, "light light-theme"), plain, true), "light");
  assert.equal(kindOf(page({ "data-theme": "dark" }, "dark dark-theme"), plain, false), "dark");
  assert.deepEqual([true, false].map((dark) => kindOf(plain, plain, dark)), ["dark", "light"]);
});

test("a breakpoint is seen before what else happened at its step", () => {
  const marks = [{ kind: "rewind", x: 10 }, { kind: "breakpoint", x: 10 }, { kind: "pause", x: 12 }, { kind: "pause", x: 40 }];
  assert.deepEqual(apart(marks, 4).map(({ kind, x }) => [kind, x]), [["breakpoint", 10], ["pause", 40]]);
  assert.deepEqual(apart([], 4), []);
});

test("what is wrong in an inspection is found, and a name that only sounds like it is not", () => {
  const wrong = [["loss", "NaN"], ["x", "float32 [2]  0 … 1, 3 inf"], ["not finite", "input: ..."], ["failed", "ValueError"], ["fc", "dead, mean 0"], ["fc", "no gradient"]];
  assert.deepEqual(wrong.filter((row) => !isAlarming(row)), []);
  const fine = [["loss", "0.5"], ["info", "mean 0"], ["nanny", "deadline"], ["fc", "gradient 0.1"]];
  assert.deepEqual(fine.filter(isAlarming), []);
});

test("it says when steps gave the same bits for the last time", () => {
  const said = (seconds) => `${seconds} o'clock`;
  assert.equal(whenExact({ exact: true, at: 4, exact_at: 4 }, said), "last exact at 4 o'clock");
  assert.equal(whenExact({ exact: false, at: 5, exact_at: 4 }, said), "tried at 5 o'clock; last exact at 4 o'clock");
  assert.equal(whenExact({ exact: false, at: 5, exact_at: null }, said), "tried at 5 o'clock; not exact before");
});

test("a table of many columns takes the whole width", () => {
  const heads = (n) => ({ grid: { heads: Array(n).fill("x") } });
  assert.deepEqual([{ grid: null }, {}, heads(4), heads(9)].map(isWide), [false, false, false, true]);
});

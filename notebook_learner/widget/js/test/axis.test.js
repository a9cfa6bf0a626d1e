import assert from "node:assert/strict";
import test from "node:test";
import { AXES, STEPS, trackOf, whyNot } from "../src/axis.js";
import { csvOf } from "../src/exports.js";
import { duration, spans } from "../src/format.js";
import { Plot } from "../src/plot.js";
import { Series } from "../src/series.js";

const EPOCHS = [[0, 100, 160, 400], [0, 1, 2, 3]]; // of different lengths
const TOLD = { trained: 277, spent: 30, epochs: EPOCHS, seconds: [[0, 100, 200], [0, 10, 25]] };

const grown = (...steps) => {
  const series = new Series();
  for (const step of steps) series.append(step, step);
  return series;
};

test("a step in the middle of an epoch is a fraction of that epoch", () => {
  const track = trackOf("epoch", TOLD);
  assert.equal(track.to(277), 2.4875);
  assert.equal(track.to(130), 1.5);
  assert.ok(Math.abs(track.back(2.4875) - 277) < 1e-9);
  assert.equal(track.to(520), 3.5, "beyond what is known it goes on");
});

test("time goes on to the newest step, also between two of the kernel's tables", () => {
  const track = trackOf("time", TOLD);
  assert.equal(track.to(50), 5);
  assert.equal(track.to(277), 30);
  assert.equal(trackOf("time", TOLD), track, "the same track while nothing changes");
  assert.equal(trackOf("time", { ...TOLD, trained: 300, spent: 40 }).to(300), 40);
});

test("there and back again, from each step", () => {
  for (const kind of ["epoch", "time"]) {
    const track = trackOf(kind, TOLD);
    for (let step = 0; step < 500; step++) assert.ok(Math.abs(track.back(track.to(step)) - step) < 1e-9);
  }
});

test("steps that took no time at all stay apart", () => {
  const track = trackOf("time", { trained: 30, spent: 2, seconds: [[0, 10, 20, 30], [0, 1, 1, 2]] });
  assert.ok(track.to(10) < track.to(20) && track.to(20) < track.to(30));
});

test("what a run lacks is refused in words", () => {
  assert.equal(whyNot("step", {}), "");
  assert.equal(whyNot("time", TOLD), "");
  assert.match(whyNot("time", { seconds: null }), /not known/);
  assert.match(whyNot("epoch", { epochs: null }), /end of the first/);
});

/** A plot without a page. */
const plotOf = (kind, steps, ...branches) => {
  const plot = new Plot(null, () => ({}), () => {}, () => {});
  plot.lines = [{ split: "train", series: grown(...steps) }];
  plot.axis = kind;
  plot.track = trackOf(kind, TOLD);
  plot.branches = branches;
  return plot;
};

test("each line is shown by its own clock", () => {
  const slow = { name: "run slow", run: "slow", track: trackOf("time", { seconds: [[0, 10], [0, 100]] }), parts: [{ split: "train", series: grown(1, 5, 10) }] };
  assert.deepEqual(plotOf("time", [1, 100, 200], slow).bounds, [0.1, 100]);
  assert.deepEqual(plotOf("time", [1, 100, 200]).bounds, [0.1, 25]);
  assert.deepEqual(plotOf("step", [1, 100, 200], { ...slow, track: STEPS }).bounds, [1, 200]);
});

test("another axis shows the steps that were zoomed to", () => {
  const plot = plotOf("epoch", [1, 100, 277]);
  plot.zoom(0.5);
  const { steps } = plot;
  plot.axis = "time";
  plot.track = trackOf("time", TOLD);
  assert.deepEqual(plot.steps, steps);
  assert.deepEqual(plot.shown, steps.map((step) => plot.track.to(step)));
  plot.axis = "step";
  plot.track = STEPS;
  assert.deepEqual(plot.shown, steps);
});

test("labels of times tell neighbours apart", () => {
  assert.deepEqual(spans([0, 0.5, 1]), ["0 s", "0.5 s", "1.0 s"]);
  assert.deepEqual(spans([60, 90, 120]), ["1:00 min", "1:30 min", "2:00 min"]);
  assert.deepEqual(spans([0, 300, 600]), ["0 min", "5 min", "10 min"]);
  assert.deepEqual(spans([5400, 7200]), ["1:30 h", "2:00 h"]);
  assert.deepEqual(spans([7200, 7230]), ["2:00:00 h", "2:00:30 h"]);
  assert.deepEqual(spans([0, 86_400]), ["0 d", "1 d"]);
  for (const { marks } of Object.values(AXES)) assert.deepEqual(marks, [...marks].sort((a, b) => a - b));
});

test("a time span reads as the kernel writes it", () => {
  assert.deepEqual([3725, 65, 12.4, 3.21, 0.012, 200_000].map(duration), ["1 h 02 min", "1 min 05 s", "12 s", "3.2 s", "12 ms", "2 d 08 h"]);
});

test("a table of values says when and in which epoch each step was", () => {
  const lines = [{ split: "train", series: grown(1, 2) }];
  const { text } = csvOf(lines, 2, { epoch: trackOf("epoch", TOLD), seconds: trackOf("time", TOLD) });
  assert.equal(text, "step,train,epoch,seconds\r\n1,1,0.01,0.1\r\n2,2,0.02,0.2\r\n");
});

import assert from "node:assert/strict";
import test from "node:test";
import { csvOf, fileName, svgOf } from "../src/exports.js";
import { drawGlyphs, drawLines } from "../src/marks.js";
import { Series } from "../src/series.js";
import { Sketch, escaped } from "../src/sketch.js";

const HOSTILE = `</text><script>alert("1 & 'one'")</script>\u0000\ud800`;
const LOOK = { text: "#111", muted: "#555", grid: "#eee", line: "#ddd", mark: "#777", bad: "#a00", surface: "#fff", background: "rgb(255, 255, 255)", font: `"Segoe UI", sans-serif` };

/** A plot of 400 × 300 as Plot.seen tells of it: ten pixels a step, a hundred a unit. */
const seen = (more = {}) => ({
  size: [400, 300],
  box: [50, 18, 330, 240],
  place: (value, scale) => (scale === "x" ? value * 10 : 240 - value * 100),
  lines: [{ name: "train", colour: "#1d62d8", dash: [], raw: [[1, 0.5], [2, null], [3, 0.25], [4, 0.125]], smooth: [[1, 0.5], [4, 0.25]], faint: true, dots: false }],
  thin: [],
  axes: [[[0, "0"], [10, "10"]], [[0.5, "0.5"]], [[2, "1"]]],
  smoothing: "3 steps",
  behind: (chart) => drawLines(chart, [{ from: 0, to: 4, number: 1, ended: true }], LOOK),
  before: (chart) => drawGlyphs(chart, { marks: [{ kind: "checkpoint", x: 2 }, { kind: "pause", x: 20 }], bad: [2], spans: [] }, LOOK),
  ...more,
});

const grown = (...values) => {
  const series = new Series();
  values.forEach((value, at) => series.append(at + 1, value));
  return series;
};

/** The tags of an XML text as they open and close; throws where one is left open. */
function tags(xml) {
  const open = [];
  const found = [];
  assert.equal(xml.replace(/<(?:[^<>"]|"[^"<]*")*>/g, "").match(/[<>]|&(?!#\d+;)/), null, "a sign that is no tag");
  for (const [, end, name] of xml.matchAll(/<(\/?)([a-z]+)(?:[^<>"]|"[^"<]*")*>/g)) {
    if (end) assert.equal(open.pop(), name);
    else found.push(open.push(name) && name);
  }
  assert.deepEqual(open, []);
  return found;
}

const path = (svg, line) => new RegExp(`<path d="([^"]*)"[^>]*data-line="${line}"`).exec(svg)[1];

test("a picture holds the lines with their gaps, the axes, the title and the legend", () => {
  const svg = svgOf(seen(), "digits · Loss", LOOK);
  assert.equal(path(svg, "raw"), "M60 258M80 283L90 295.5");
  assert.equal(path(svg, "smooth"), "M60 258L90 283");
  const texts = [...svg.matchAll(/<text [^>]*>([^<]*)</g)].map(([, text]) => text);
  for (const text of ["digits · Loss", "train", "smoothing 3 steps", "0", "10", "0.5", "1", "step"]) assert.ok(texts.includes(text), text);
  assert.equal(tags(svg).filter((name) => name === "svg").length, 2);
  assert.match(svg, /^<svg xmlns="http:\/\/www.w3.org\/2000\/svg" width="400" height="350"/);
});

test("what happened at a step is where that step is, below the title", () => {
  const svg = svgOf(seen(), "digits", LOOK);
  assert.match(svg, /d="M90.5 68L90.5 308"/); // the end of the epoch, at step 4
  assert.match(svg, /d="M70 56L74 60L70 64L66 60Z"/); // the checkpoint, at step 2
  assert.match(svg, /<rect x="246.8" y="56.4"/); // the pause, at step 20
});

test("names cannot break out of the picture", () => {
  const svg = svgOf(seen({ lines: [{ ...seen().lines[0], name: HOSTILE }] }), HOSTILE, LOOK);
  assert.ok(!tags(svg).includes("script"));
  assert.ok(!/[\u0000\ud800]/u.test(svg));
  assert.equal(escaped(`<a b="c" d='e'>&\u0001`), "&#60;a b=&#34;c&#34; d=&#39;e&#39;&#62;&#38;\ufffd");
});

test("a canvas that gives back SVG moves, cuts off and goes back as a canvas does", () => {
  const sketch = new Sketch(100);
  sketch.fillStyle = "#123";
  sketch.save();
  sketch.translate(10, 20);
  sketch.rect(0, 0, 30, 40);
  sketch.clip();
  sketch.fillStyle = "#456";
  sketch.fillRect(1, 2, 3, 4);
  sketch.restore();
  sketch.fillRect(1, 2, 3, 4);
  const [clip, inside, end, outside] = String(sketch).split("\n");
  assert.equal(clip, `<svg x="10" y="20" width="30" height="40" viewBox="10 20 30 40">`);
  assert.match(inside, /^<rect x="11" y="22" width="3" height="4" fill="#456"/);
  assert.equal(end, "</svg>");
  assert.match(outside, /^<rect x="1" y="2" width="3" height="4" fill="#123"/);
});

test("values are written with all their digits, and nothing where there is none", () => {
  const train = grown(0.1 + 0.2, NaN, 1e-7, Infinity, -Infinity, 1 / 3);
  const valid = new Series();
  valid.append(3, 0.5);
  valid.append(7, 2);
  const { text, widest } = csvOf([{ split: "train", series: train }, { split: "valid", series: valid }], 7);
  assert.equal(text, "step,train,valid\r\n1,0.30000000000000004,\r\n2,nan,\r\n3,1e-7,0.5\r\n4,inf,\r\n5,-inf,\r\n6,0.3333333333333333,\r\n7,,2\r\n");
  assert.equal(widest, 1);
});

test("rows of a long run say of which steps they are", () => {
  const train = Series.fromBuckets(Float64Array.from([1, 5, 9, 0, 1, 2, 4, 5, 6, 3, 3, 3]), 3, 4);
  const valid = new Series();
  valid.append(8, 0.5);
  const lines = [{ split: "train", series: train }, { split: "valid", series: valid }];
  const head = "step,to,train mean,train lowest,train highest,valid";
  assert.deepEqual(csvOf(lines, 10).text.trim().split("\r\n"), [head, "1,4,3,0,4,", "5,8,3,1,5,", "8,8,,,,0.5", "9,10,3,2,6,"]);
  assert.equal(csvOf(lines, 10).widest, 4);
  train.append(12, 7); // a step that came since stands for itself
  assert.deepEqual(csvOf(lines, 12).text.trim().split("\r\n").slice(4), ["9,11,3,2,6,", "12,12,7,7,7,"]);
  train.append(9, 8); // taken back
  assert.deepEqual(csvOf(lines, 9).text.trim().split("\r\n").slice(4), ["9,9,8,8,8,"]);
});

test("a page that has thinned a line says so, too", () => {
  const series = new Series(4, 8);
  for (let step = 1; step <= 9; step++) series.append(step, step);
  const rows = csvOf([{ split: "train", series }], 9).text.trim().split("\r\n").slice(1);
  assert.deepEqual(rows, ["1,2,1.5,1,2", "3,4,3.5,3,4", "5,5,5,5,5", "6,6,6,6,6", "7,7,7,7,7", "8,8,8,8,8", "9,9,9,9,9"]);
});

test("a name is no formula of a spreadsheet, and needs no more than one cell", () => {
  const heads = ["=1+1", "+a", "-a", "@a", `a,"b"`, "train"].map((split) => csvOf([{ split, series: grown(1) }], 1).text.split("\r\n")[0]);
  assert.deepEqual(heads, ["step,'=1+1", "step,'+a", "step,'-a", "step,'@a", `step,"a,""b"""`, "step,train"]);
});

test("a file's name has nothing that a file's name may not have", () => {
  assert.equal(fileName("digits", "Loss", "PNG"), "digits-Loss.png");
  assert.equal(fileName("../a b", "x/y:<z>", "CSV"), ".._a_b-x_y__z_.csv");
  assert.equal(fileName("Größe_1.5", "Loss", "SVG"), "Größe_1.5-Loss.svg");
  assert.ok(fileName("a".repeat(500), "Loss", "SVG").length < 130);
});

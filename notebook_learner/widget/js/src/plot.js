// The picture of one metric: uPlot under a small set of views (all, recent, zoomed).

import uPlot from "uplot";
import { AXES, STEPS } from "./axis.js";
import { rawPath } from "./band.js";
import { drawBranches, drawNames, labelOf, nearest, pointsOf } from "./branches.js";
import { logTicks, ticks } from "./format.js";
import { drawGlyphs, drawLines, drawTarget, epochLabels, epochSpans, nearestMarks } from "./marks.js";
import { align, besides, downsample, extent, memoryOf, recentFrom, smooth } from "./series.js";

const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3]];
const CLICK = 5; // pixels: a drag shorter than this is a click

export class Plot {
  #host;
  #colours;
  #hovered;
  #clicked;
  #chart = null;
  #shape = "";
  #size = [0, 0];
  #bad = [];
  #spans = []; // the epochs along the axis
  #marks = []; // what happened, along the axis
  #window = [0, 1];
  #range = [0, 1];
  #axisWidth = 40;
  #samples = new WeakMap();
  #thin = []; // the branches as they are drawn, in places and values
  #over = null; // the branch under the pointer
  #down = 0;

  constructor(host, colours, hovered, clicked) {
    this.#host = host;
    this.#colours = colours;
    this.#hovered = hovered;
    this.#clicked = clicked;
    this.lines = []; // {split, series}
    this.axis = "step"; // along what the curves are drawn
    this.track = STEPS; // where the steps of the run's own line lie there: a "place" is a number of the axis
    this.branches = []; // {name, changes, track, parts: the same as lines}
    this.lit = null; // the name of the branch that is shown strongly
    this.marks = [];
    this.epoch = null;
    this.target = null; // a step that the user considers going back to
    this.log = false;
    this.slider = 0;
    this.window = "all"; // "all" | "recent" | [from, to] in steps
    this.onWindow = () => {};
  }

  /** The places that can be shown. */
  get bounds() {
    const all = [{ track: this.track, parts: this.lines }, ...this.branches].filter(({ parts }) => parts.some(({ series }) => series.length > 0));
    if (all.length === 0) return [0, 1];
    const ends = all.map(({ track, parts }) => boundsOf(parts).map(track.to, track));
    return [Math.min(...ends.map(([from]) => from)), Math.max(...ends.map(([, to]) => to))];
  }

  /** The steps that the run's own line has taken. */
  get own() {
    return boundsOf(this.lines);
  }

  /** The places that are shown. */
  get shown() {
    if (this.window === "all") return this.bounds;
    return (Array.isArray(this.window) ? this.window : this.#recent).map(this.track.to, this.track);
  }

  /** The steps of the run's own line that are there. */
  get steps() {
    return Array.isArray(this.window) ? this.window : this.shown.map(this.track.back, this.track);
  }

  get #recent() {
    const [oldest, newest] = this.own;
    return [Math.max(oldest, recentFrom(newest, this.#epochEnds())), newest];
  }

  /** How many steps the smoothing remembers. */
  get memory() {
    const [from, to] = this.steps;
    return memoryOf(this.slider, to - from);
  }

  draw() {
    const [width, height] = [this.#host.clientWidth, this.#host.clientHeight];
    if (width < 40 || height < 40) return;
    const data = this.#data(width);
    const shape = JSON.stringify([this.lines.map(({ split }) => split), this.log]);
    if (shape !== this.#shape) this.#remake(shape, width, height, data);
    else {
      if (width !== this.#size[0] || height !== this.#size[1]) this.#chart.setSize({ width, height });
      this.#chart.setData(data);
    }
    this.#size = [width, height];
  }

  /** Colours have changed. */
  repaint() {
    this.#chart?.redraw(false, true);
  }

  close() {
    this.#chart?.destroy();
    this.#chart = null;
    this.#shape = "";
  }

  zoom(factor, around = null) {
    const [from, to] = this.shown;
    const centre = around ?? (from + to) / 2;
    this.#look(centre - (centre - from) * factor, centre + (to - centre) * factor);
  }

  pan(share) {
    const [from, to] = this.shown;
    const [oldest, newest] = this.bounds;
    const shift = Math.max(oldest - from, Math.min(newest - to, (to - from) * share));
    this.#look(from + shift, to + shift);
  }

  reset() {
    this.window = "all";
    this.onWindow();
  }

  /** Move the read-out by so many pixels; for the keyboard. */
  point(pixels) {
    if (!this.#chart) return;
    const width = this.#chart.over.clientWidth;
    const left = this.#chart.cursor.left < 0 ? width : this.#chart.cursor.left;
    this.#chart.setCursor({ left: Math.max(0, Math.min(width - 1, left + pixels)), top: 10 });
  }

  unpoint() {
    this.#chart?.setCursor({ left: -10, top: -10 });
  }

  /** Where the plot begins, in pixels from the left. */
  get left() {
    return this.#chart?.over.offsetLeft ?? 0;
  }

  #epochEnds() {
    return this.marks.filter(({ kind }) => kind === "epoch").map(({ x }) => x);
  }

  #look(from, to) {
    const [oldest, newest] = this.bounds;
    const [left, right] = [Math.max(oldest, from), Math.min(newest, to)];
    const steps = [left, right].map(this.track.back, this.track);
    if (right - left >= newest - oldest) this.window = "all";
    else if (steps[1] - steps[0] >= 2) this.window = steps;
    this.onWindow();
  }

  #data(width) {
    const [from, to] = (this.#window = this.shown);
    const [memory, steps] = [this.memory, this.steps];
    const columns = [];
    const bad = new Set();
    for (const { series } of this.lines) {
      const raw = this.#sample(series, ...steps, width);
      columns.push({ x: raw.x, y: this.#positive(raw.y) });
      columns.push(memory > 0 ? { x: raw.meanX, y: this.#positive(smooth(raw.meanSteps, raw.mean, memory)) } : { x: [], y: [] });
      for (const x of raw.bad) if (x >= from && x <= to) bad.add(x);
    }
    this.#bad = [...bad];
    this.#spans = epochSpans(this.marks, this.epoch, this.own).map((span) => ({ ...span, from: this.track.to(span.from), to: this.track.to(span.to) }));
    this.#marks = this.marks.map((mark) => ({ ...mark, x: this.track.to(mark.x) }));
    this.#thin = this.branches.flatMap((branch) => branch.parts.map((part, at) => this.#thinned(branch, part, at, width, memory)));
    const inside = ({ x, y }) => y.filter((_, at) => x[at] >= from && x[at] <= to);
    this.#range = this.#padded(besides(extent(columns.map(inside), this.log), extent(this.#thin.map(inside), this.log), this.log));
    const data = align(columns);
    // Without a step of its own the run may still have branches, and uPlot draws no axis of nothing.
    return data[0].length > 0 ? data : [[from, to], ...columns.map(() => [null, null])];
  }

  /** What is to be drawn of a series between two steps, kept while only colours and smoothing change. */
  #sample(series, from, to, width) {
    const kept = this.#samples.get(series);
    const key = `${series.revision} ${from} ${to} ${width}`;
    if (kept?.key === key && kept.track === this.track) return kept.sample;
    // Begins earlier than what is shown, so that the average does not start anew at the left edge.
    const { x, y, meanX, mean, bad } = downsample(series, from - 3 * memoryOf(1, to - from), to, width);
    const sample = { x: this.track.all(x), y, meanX: this.track.all(meanX), meanSteps: meanX, mean, bad: this.track.all(bad) };
    this.#samples.set(series, { key, track: this.track, sample });
    return sample;
  }

  #thinned({ name, changes, run, track }, { split, series }, at, width, memory) {
    const { x, y } = pointsOf(series, this.#window.map(track.back, track), width, memory);
    return { name, changes, run, label: at === 0 ? labelOf({ name, changes, run }) : "", dash: split === "valid" ? [4, 3] : [], x: track.all(x), y: this.#positive(y) };
  }

  /** The branches in pixels, from the upper left corner of the plot. */
  #traced(chart) {
    return this.#thin.map((line) => {
      const there = line.x.map((_, at) => at).filter((at) => line.y[at] !== null);
      return { ...line, x: there.map((at) => chart.valToPos(line.x[at], "x")), y: there.map((at) => chart.valToPos(line.y[at], "y")) };
    });
  }

  #positive(values) {
    return this.log ? values.map((value) => (value > 0 ? value : null)) : values;
  }

  #padded(found) {
    if (found === null) return this.log ? [0.1, 1] : [0, 1];
    const [low, high] = found;
    if (this.log) {
      const room = Math.max(1.05, (high / low) ** 0.05);
      return [low / room, high * room];
    }
    const room = high > low ? (high - low) * 0.06 : Math.abs(high) * 0.1 || 0.5;
    return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
  }

  #remake(shape, width, height, data) {
    this.close();
    this.#shape = shape;
    this.#axisWidth = 40;
    this.#chart = new uPlot({ width, height, ...this.#options() }, data, this.#host);
    const { over } = this.#chart;
    over.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    over.addEventListener("pointerdown", (event) => (this.#down = event.clientX));
    over.addEventListener("click", (event) => this.#over !== null && Math.abs(event.clientX - this.#down) < CLICK && this.#clicked(this.#over));
  }

  #options() {
    const colour = (name) => () => this.#colours()[name];
    const grid = { stroke: colour("grid"), width: 1 };
    const font = `11px ${this.#colours().font}`;
    const axis = { stroke: colour("muted"), font, ticks: { show: false } };
    return {
      legend: { show: false },
      padding: [18, 22, 0, 0],
      scales: {
        x: { time: false, range: () => this.#window },
        y: { distr: this.log ? 3 : 1, range: () => this.#range },
      },
      axes: [
        { ...axis, grid: { show: false }, size: 22, gap: 5, space: 64, incrs: () => AXES[this.axis].marks, values: (_, found) => AXES[this.axis].labels(found) },
        {
          ...axis,
          grid,
          gap: 6,
          space: 34,
          size: (_, labels) => this.#sizeOf(labels),
          values: (_, found) => ticks(found),
          ...(this.log ? { splits: (_, __, low, high) => this.#logSplits(low, high), filter: (_, found) => found } : {}),
        },
        {
          ...axis,
          scale: "x",
          side: 2,
          grid: { show: false },
          gap: 0,
          size: () => (this.#hasEpochs ? 18 : 0),
          splits: (chart) => epochLabels(this.#hasEpochs ? this.#spans : [], this.#window, chart.bbox.width / uPlot.pxRatio).map(({ at }) => at),
          values: (chart) => epochLabels(this.#hasEpochs ? this.#spans : [], this.#window, chart.bbox.width / uPlot.pxRatio).map(({ text }) => text),
          filter: (_, found) => found,
        },
      ],
      series: [{}, ...this.lines.flatMap((_, at) => this.#strokes(at))],
      cursor: {
        drag: { x: true, y: false, setScale: false, dist: CLICK },
        y: false,
        points: { size: 8, width: 2, fill: colour("surface"), stroke: (chart, at) => this.#colours().splits[(at - 1) >> 1] },
        dataIdx: (chart, at, closest) => (at % 2 === 1 && this.slider > 0 ? null : nearestDrawn(chart, at, closest)),
        bind: {
          mousedown: (chart, _, handler) => (event) => (event.shiftKey ? this.#drag(chart, event) : handler(event)),
          dblclick: () => () => this.reset(),
        },
      },
      hooks: {
        drawClear: [(chart) => this.#drawBehind(chart)],
        draw: [(chart) => this.#drawBefore(chart), (chart) => drawTarget(chart, this.target === null ? null : this.track.to(this.target), this.#colours())],
        setSelect: [(chart) => this.#selected(chart)],
        setCursor: [(chart) => this.#pointed(chart)],
      },
    };
  }

  #drawBehind(chart) {
    drawLines(chart, this.#spans, this.#colours());
    if (this.#thin.length > 0) drawBranches(chart, this.#traced(chart), this.#colours());
  }

  #drawBefore(chart) {
    if (this.#thin.length > 0) drawNames(chart, this.#traced(chart), this.lit, this.#colours());
    drawGlyphs(chart, { marks: this.#marks, bad: this.#bad, axis: this.axis, epochs: this.#hasEpochs }, this.#colours());
  }

  /** Whether the epochs have a row of their own below the axis. */
  get #hasEpochs() {
    return this.#spans.length > 0 && this.axis !== "epoch";
  }

  /** What is seen now, for a file: in pixels of the page, with two functions that draw what is behind and before
   * the lines on anything like uPlot's chart. Null when nothing was drawn. */
  get seen() {
    const chart = this.#chart;
    if (chart === null) return null;
    const { data, over } = chart;
    const column = (at) => data[0].map((x, row) => [x, data[at][row]]).filter(([, y]) => y !== undefined);
    return {
      size: this.#size,
      box: [over.offsetLeft, over.offsetTop, over.clientWidth, over.clientHeight],
      place: chart.valToPos,
      lines: this.lines.map(({ split, series }, at) => ({
        name: split,
        colour: this.#colours().splits[at % 4],
        dash: DASHES[at % 4],
        raw: column(2 * at + 1),
        smooth: column(2 * at + 2),
        faint: this.slider > 0,
        dots: series.length <= 24,
      })),
      thin: [...new Set(this.#thin.map(({ run }) => run ?? ""))],
      // What uPlot has written at its axes: places, values, epochs.
      axes: chart.axes.map(({ _splits: at = [], _values: texts }) => at.map((value, one) => [value, texts[one]])),
      behind: (on) => this.#drawBehind(on),
      before: (on) => this.#drawBefore(on),
    };
  }

  /** The raw line, and over it the smoothed one; the raw one steps back when there is another. */
  #strokes(at) {
    const stroke = () => this.#colours().splits[at % 4];
    const faint = () => (this.slider > 0 ? faded(stroke()) : stroke());
    const few = (chart, _, from, to) => to - from < 1 || this.lines[at].series.length <= 24;
    const points = { show: few, size: 5, fill: stroke, stroke };
    return [
      { stroke: faint, fill: faint, width: 1.5, dash: DASHES[at % 4], spanGaps: false, points, paths: rawPath },
      { stroke, width: 2, dash: DASHES[at % 4], points: { show: false } },
    ];
  }

  #sizeOf(labels) {
    const longest = Math.max(2, ...(labels ?? []).map((label) => label.length));
    // Only ever wider, in steps: the picture does not jump while its numbers change.
    this.#axisWidth = Math.max(this.#axisWidth, Math.ceil((longest * 6.6 + 14) / 8) * 8);
    return this.#axisWidth;
  }

  #logSplits(low, high) {
    const found = logTicks(low, high);
    if (found.length >= 2) return found;
    return [0, 1, 2, 3].map((part) => Number((low * (high / low) ** ((part + 0.5) / 4)).toPrecision(3)));
  }

  #selected(chart) {
    const { left, width } = chart.select;
    if (width < CLICK) return;
    chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.#look(chart.posToVal(left, "x"), chart.posToVal(left + width, "x"));
  }

  #pointed(chart) {
    const { left, top } = chart.cursor;
    if (left === undefined || left < 0) {
      this.#over = null;
      return this.#hovered(null);
    }
    this.#over = nearest(this.#traced(chart), left, top);
    chart.over.style.cursor = this.#over === null ? "" : "pointer";
    const x = chart.posToVal(left, "x");
    const [from, to] = this.#window;
    const reach = ((to - from) / Math.max(1, chart.over.clientWidth)) * 6;
    this.#hovered({ x: this.track.back(x), marks: nearestMarks(this.#marks, x, reach), branch: this.#over, left, top });
  }

  #drag(chart, event) {
    const stop = new AbortController();
    const perPixel = 1 / Math.max(1, chart.over.clientWidth);
    let before = event.clientX;
    const move = (next) => {
      this.pan((before - next.clientX) * perPixel);
      before = next.clientX;
    };
    window.addEventListener("mousemove", move, { signal: stop.signal });
    window.addEventListener("mouseup", () => stop.abort(), { signal: stop.signal });
  }

  /** Sideways or with shift: pan. With ctrl or ⌘: zoom. Otherwise the wheel belongs to the page. */
  #wheel(event) {
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      const box = this.#chart.over.getBoundingClientRect();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.#chart.posToVal(event.clientX - box.left, "x"));
    } else if (Array.isArray(this.window) && Math.abs(sideways) > (event.shiftKey ? 0 : Math.abs(event.deltaY))) {
      event.preventDefault();
      this.pan(sideways / Math.max(200, this.#chart.over.clientWidth));
    }
  }
}

/** The first and the last step of some lines. */
function boundsOf(lines) {
  const held = lines.filter(({ series }) => series.length > 0);
  if (held.length === 0) return [0, 1];
  const newest = Math.max(...held.map(({ series }) => series.x[series.length - 1]));
  const oldest = Math.min(...held.map(({ series }) => series.x[0]));
  return newest > oldest ? [oldest, newest] : [oldest - 0.5, newest + 0.5];
}

/** The place of the line's nearest drawn point; lines have points at steps of their own. */
function nearestDrawn(chart, at, closest) {
  const column = chart.data[at];
  if (at === 0 || column[closest] != null) return closest;
  for (let away = 1; away < 400; away++) {
    if (column[closest - away] != null) return closest - away;
    if (column[closest + away] != null) return closest + away;
  }
  return closest;
}

/** A colour (#rrggbb) at a third of its strength. */
const faded = (colour) => `${colour}55`;

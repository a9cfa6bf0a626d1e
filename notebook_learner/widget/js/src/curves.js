// The plots: a tab for each metric, the views of it, and the same as a table.

import { AXES, AxisChoice, trackOf } from "./axis.js";
import { Branches } from "./branches.js";
import { fill, freshId, h, setAttribute, setText, show } from "./dom.js";
import { number, whole } from "./format.js";
import { Grid } from "./grid.js";
import { passes } from "./keys.js";
import { epochOf, epochSpans, signsOf, wordOf } from "./marks.js";
import { Plot } from "./plot.js";
import { tabulate } from "./series.js";
import { Sheets } from "./sheets.js";
import { keyOf } from "./store.js";
import { splitNumber, swatch } from "./table.js";
import { colours } from "./theme.js";

const DESCRIBED_EVERY = 5000; // ms: the words for screen readers need not follow each step
const ROWS = 24;
const SMOOTHING = 30; // of 100: little enough to hide nothing, and the raw line stays

export class Curves {
  #signal;
  #redraw;
  #colours = null;
  #metrics = [];
  #metric = null;
  #views = new Map(); // metric -> its scale, smoothing and window, while another one is shown
  #drawn = "";
  #hover = null;
  #described = 0;
  #asTable = false;

  /** `redraw(alone)` has the panel drawn before the next frame; `alone`: nothing but the plot, by `drawPlot`. */
  constructor(panel, ask, refuse, signal, redraw) {
    this.panel = panel;
    this.#signal = signal;
    this.#redraw = redraw;
    this.branches = new Branches(ask, refuse, (name) => this.#light(name), signal);
    const painted = () => this.#painted();
    this.grid = new Grid((name) => this.#choose(name), painted, () => this.#again(), signal);
    this.axis = new AxisChoice(refuse, () => this.#again(), signal);
    this.#make();
    this.plot = new Plot(this.canvas, painted, (at) => this.#hovered(at), (name) => this.branches.choose(name));
    this.plot.slider = SMOOTHING / 100;
    this.plot.onWindow = () => this.#again(true);
    const sized = new ResizeObserver(() => this.#again());
    sized.observe(this.canvas);
    signal.addEventListener("abort", () => sized.disconnect());
    this.#listen();
  }

  update(board, store) {
    this.#metrics = board.metrics ?? [];
    this.grid.of(board.path);
    const names = this.#metrics.map(({ name }) => name);
    const sheets = board.sheets ?? [];
    const tabs = [...this.grid.tabs(this.#metrics), ...sheets].map(({ name }) => name);
    const chosen = tabs.includes(this.#metric) ? this.#metric : (tabs[0] ?? names[0] ?? null);
    if (chosen !== this.#metric) this.#choose(chosen);
    this.board = board;
    this.store = store;
    this.axis.update(board);
    const { kind } = this.axis;
    Object.assign(this.plot, { axis: kind, track: trackOf(kind, board) });
    show(this.element, tabs.length > 0 && store.begun);
    this.grid.update(store.begun ? this.#metrics : [], this.#metric, board, store, this.plot);
    if (this.#metric === null || this.element.hidden) return;
    this.#updateTabs();
    this.sheets.update(sheets.find(({ name }) => name === this.#metric));
    show(this.plotted, this.sheets.element.hidden);
    if (this.plotted.hidden) return;
    const metric = this.#metrics[names.indexOf(this.#metric)];
    this.plot.lines = metric.splits
      .map((split) => ({ split, series: store.series.get(keyOf(metric.name, split)) }))
      .filter(({ series }) => series !== undefined);
    this.branches.update(board, store, kind);
    this.plot.branches = this.branches.lines
      .map((line) => ({ ...line, track: trackOf(kind, this.#toldOf(line)), parts: this.#partsOf(line, metric) }))
      .filter(({ track, parts }) => track !== null && parts.length > 0);
    this.plot.marks = board.marks ?? [];
    this.plot.epoch = board.epoch;
    this.unit = metric.unit;
    const signs = signsOf(this.plot.marks);
    show(this.legend, signs.length > 0 && !this.#asTable);
    fill(this.legend, signs, () => h("span", {}, h("span", { "aria-hidden": "true" }), h("span")), (sign, kind) => {
      setAttribute(sign.firstElementChild, "class", `nl-sign nl-sign-${kind}`);
      setText(sign.lastElementChild, wordOf(kind));
    });
    setText(this.caption, metric.name);
    setText(this.name, metric.name);
    setAttribute(this.frame, "data-points", this.plot.lines[0]?.series.length ?? 0);
    this.drawPlot();
    this.#describe(metric);
  }

  /** Draw the plot alone, as while it is zoomed: sixty times a second there is no time for all tables. */
  drawPlot() {
    this.#draw(this.store.curves);
    this.#read();
  }

  /** What is known of a line. An epoch of a branch that has none of its own is one of the run. */
  #toldOf(line) {
    return line.run || line.epochs ? line : { ...line, epochs: this.board.epochs };
  }

  #partsOf({ name }, metric) {
    const known = this.store.branches.get(name);
    return metric.splits.map((split) => ({ split, series: known?.get(keyOf(metric.name, split)) })).filter(({ series }) => series?.length > 0);
  }

  /** Show a branch strongly; null for none. */
  #light(name) {
    this.plot.lit = name;
    this.plot.repaint();
    this.#redraw();
  }

  /** Show a step of the past that the user considers; null for no step. */
  aim(step) {
    if (this.plot.target === step) return;
    this.plot.target = step;
    this.plot.repaint();
    if (this.store) this.#read();
  }

  /** Show a curve: a strip has no room for anything else. */
  compact() {
    if (!this.sheets.element.hidden) this.#choose(this.grid.tabs(this.#metrics)[0]?.name ?? this.#metric);
  }

  get metric() {
    return this.#metric;
  }

  /** What the plot shows, also while the table is in its place. */
  async seen() {
    show(this.frame, true);
    this.plot.draw();
    await null; // uPlot draws a moment later
    show(this.frame, !this.#asTable);
    return { ...this.plot.seen, smoothing: this.memory.textContent };
  }

  repaint() {
    this.#colours = null;
    this.plot.repaint();
    this.#redraw();
  }

  /** The colours of the page; before the panel is on it, or its style sheet, there are none to keep. */
  #painted() {
    const found = this.#colours ?? colours(this.panel);
    if (found.text !== "") this.#colours = found;
    return found;
  }

  close() {
    this.plot.close();
  }

  #make() {
    this.tabs = h("div", { class: "nl-tabs", role: "tablist", "aria-label": "Metrics" });
    this.all = h("button", { class: "nl-button nl-small", type: "button", "aria-pressed": "true" }, "All");
    this.recent = h("button", { class: "nl-button nl-small", type: "button", "aria-pressed": "false" }, "Recent");
    this.log = h("button", { class: "nl-button nl-small", type: "button", "aria-pressed": "false" }, "Log scale");
    this.table = h("button", { class: "nl-button nl-small", type: "button", "aria-pressed": "false" }, "Table");
    this.slider = h("input", { type: "range", class: "nl-slider", min: 0, max: 100, value: SMOOTHING, "aria-label": "Smoothing" });
    this.memory = h("span", { class: "nl-memory" });
    this.tools = h(
      "div",
      { class: "nl-tools" },
      h("label", { class: "nl-smoothing" }, h("span", {}, "Smoothing"), this.slider, this.memory),
      h("div", { class: "nl-joined", role: "group", "aria-label": "Steps shown" }, this.all, this.recent),
      this.axis.element,
      this.log,
      this.table,
    );
    this.where = h("span", { class: "nl-read-where" });
    this.values = h("span", { class: "nl-read-values" });
    this.marks = h("span", { class: "nl-read-marks" });
    this.name = h("b", { class: "nl-read-name" });
    this.readout = h("div", { class: "nl-readout" }, this.name, this.values, this.where, this.marks);
    this.canvas = h("div", { class: "nl-canvas", role: "img", "aria-label": "Plot" });
    this.tip = h("div", { class: "nl-tip", "aria-hidden": "true", hidden: true });
    this.caption = h("span", { class: "nl-unseen" });
    this.frame = h(
      "div",
      { class: "nl-frame", "data-part": "plot", "data-points": 0, tabindex: 0, role: "group", "aria-label": "Plot: arrows read it, plus and minus zoom, shift and arrows move, 0 shows everything" },
      this.caption,
      this.canvas,
      this.tip,
    );
    this.legend = h("div", { class: "nl-legend", "aria-label": "Signs in the plot", role: "group" });
    this.rows = h("tbody");
    this.heads = h("tr");
    this.numbers = h("div", { class: "nl-frame nl-scroll", tabindex: 0, role: "group", "aria-label": "The plot as a table", hidden: true }, h("table", { class: "nl-table" }, h("thead", {}, this.heads), this.rows));
    this.plotted = h("div", {}, h("div", { class: "nl-over" }, this.readout, this.tools), this.frame, this.numbers, this.legend, this.branches.element);
    this.sheets = new Sheets();
    this.sheet = h("div", { role: "tabpanel", id: freshId("sheet"), class: "nl-sheet" }, this.plotted, this.sheets.element);
    this.element = h("div", { role: "group", class: "nl-section nl-curves", "aria-label": "Curves" }, this.tabs, this.sheet);
  }

  #listen() {
    const on = (element, event, handler) => element.addEventListener(event, handler, { signal: this.#signal });
    on(this.all, "click", () => this.#view("all"));
    on(this.recent, "click", () => this.#view("recent"));
    on(this.log, "click", () => {
      this.plot.log = !this.plot.log;
      this.#again();
    });
    on(this.table, "click", () => {
      this.#asTable = !this.#asTable;
      this.#again();
    });
    on(this.slider, "input", () => {
      this.plot.slider = Number(this.slider.value) / 100;
      this.#again();
    });
    on(this.tabs, "keydown", (event) => this.#tabKey(event));
    on(this.frame, "keydown", (event) => this.#plotKey(event));
    on(this.frame, "blur", () => this.plot.unpoint());
  }

  #view(name) {
    this.plot.window = name;
    this.#again();
  }

  #again(alone = false) {
    this.#drawn = "";
    this.#redraw(alone);
  }

  #updateTabs() {
    const make = () => {
      const tab = h("button", { class: "nl-tab", type: "button", role: "tab", id: freshId("tab"), "aria-controls": this.sheet.id });
      tab.addEventListener("click", () => this.#choose(tab.dataset.metric), { signal: this.#signal });
      return tab;
    };
    fill(this.tabs, [...this.grid.tabs(this.#metrics), ...(this.board.sheets ?? [])], make, (tab, { name }) => {
      const chosen = name === this.#metric;
      tab.dataset.metric = name;
      setText(tab, name);
      setAttribute(tab, "aria-selected", String(chosen));
      setAttribute(tab, "tabindex", chosen ? 0 : -1);
      if (chosen) setAttribute(this.sheet, "aria-labelledby", tab.id);
    });
  }

  #choose(name) {
    const { log, slider, window } = this.plot;
    this.#views.set(this.#metric, { log, slider, window });
    this.#metric = name;
    Object.assign(this.plot, this.#views.get(name) ?? { log: false, slider: SMOOTHING / 100, window: "all" });
    this.slider.value = Math.round(100 * this.plot.slider);
    this.#again();
  }

  #tabKey(event) {
    const tabs = [...this.tabs.children];
    const at = tabs.indexOf(event.target);
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (next === undefined || at < 0 || passes(event)) return;
    event.preventDefault();
    const tab = tabs[(next + tabs.length) % tabs.length];
    this.#choose(tab.dataset.metric);
    tab.focus();
  }

  #plotKey(event) {
    const { key, shiftKey } = event;
    if (passes(event)) return;
    const arrow = { ArrowLeft: -1, ArrowRight: 1 }[key];
    if (arrow !== undefined) shiftKey ? this.plot.pan(arrow * 0.2) : this.plot.point(arrow * 4);
    else if (key === "+" || key === "=") this.plot.zoom(0.7);
    else if (key === "-") this.plot.zoom(1 / 0.7);
    else if (key === "0") this.plot.reset();
    else return;
    event.preventDefault();
  }

  #draw(version) {
    setAttribute(this.all, "aria-pressed", String(this.plot.window === "all"));
    setAttribute(this.recent, "aria-pressed", String(this.plot.window === "recent"));
    setAttribute(this.log, "aria-pressed", String(this.plot.log));
    setAttribute(this.table, "aria-pressed", String(this.#asTable));
    show(this.frame, !this.#asTable);
    show(this.numbers, this.#asTable);
    const now = `${version} ${this.#metric} ${this.plot.axis} ${this.plot.marks.length} ${this.plot.branches.map(({ name }) => name)}`;
    if (now === this.#drawn) return;
    this.#drawn = now;
    const memory = Math.round(this.plot.memory);
    setText(this.memory, memory > 0 ? `${whole(memory)} ${memory === 1 ? "step" : "steps"}` : "off");
    setAttribute(this.slider, "aria-valuetext", this.memory.textContent);
    if (this.#asTable) this.#drawTable();
    else this.plot.draw();
  }

  #drawTable() {
    const lines = this.plot.lines;
    fill(this.heads, ["Step", ...lines.map(({ split }) => split)], () => h("th", { scope: "col" }), setText);
    const rows = tabulate(lines.map(({ series }) => series), ...this.plot.steps, ROWS);
    fill(this.rows, rows, () => h("tr"), (row, { from, to, cells }) => {
      const texts = [from === to ? whole(from) : `${whole(from)} – ${whole(to)}`, ...cells.map(cellText)];
      fill(row, texts, () => h("td"), setText);
    });
  }

  #hovered(at) {
    const before = this.#hover?.branch ?? null;
    this.#hover = at;
    if (before !== (at?.branch ?? null)) this.#light(at?.branch ?? this.branches.chosen);
    this.#hint(at);
    this.grid.point(at?.x ?? null);
    if (this.store) this.#read();
  }

  /** Beside the pointer: which branch this is. */
  #hint(at) {
    const line = at?.branch ? this.branches.lines.find(({ name }) => name === at.branch) : undefined;
    show(this.tip, line !== undefined);
    if (line === undefined) return;
    setText(this.tip, line.text);
    const { clientWidth: width, clientHeight: height } = this.frame;
    const edge = this.plot.left;
    this.tip.style.left = `${Math.max(4, Math.min(width - this.tip.offsetWidth - 4, edge + at.left + 12))}px`;
    this.tip.style.top = `${at.top > height / 2 ? at.top - this.tip.offsetHeight : at.top + 36}px`;
  }

  /** The line above the plot: what is under the pointer, or else the newest values. */
  #read() {
    const { lines, marks } = this.plot;
    const x = this.#hover?.x ?? this.plot.target ?? Infinity;
    const make = () => h("span", { class: "nl-read" }, swatch(), h("span"), h("b"), h("small"));
    let step = null;
    fill(this.values, lines, make, (item, { split, series }) => {
      const at = series.nearest(x === Infinity ? Number.MAX_VALUE : x);
      if (at >= 0 && (step === null || split === "train")) step = series.x[at];
      setAttribute(item.children[0], "data-split", splitNumber([], split));
      const here = at < 0 ? "–" : valueText(series, at, this.unit);
      const ofEpochs = isOfEpochs(split, series, marks);
      // What counts is the epoch's value: a batch's stands beside it, small, also under the pointer.
      const newest = x === Infinity ? this.#row(split) : undefined;
      const bold = newest?.epoch ? newest.epoch + (this.unit ? ` ${this.unit}` : "") : ofEpochs ? here : "";
      setText(item.children[1], `${split}${bold ? (newest?.so_far && newest.epoch ? " so far" : " avg") : ""}`);
      setText(item.children[2], bold);
      show(item.children[2], bold !== "");
      setText(item.children[3], ofEpochs ? "" : `batch ${here}`);
    });
    setText(this.where, step === null ? "" : this.#place(step));
    setText(this.marks, (this.#hover?.marks ?? []).map(({ kind, text }) => text || wordOf(kind)).join(" · "));
  }

  /** Where a step is: along the axis first. */
  #place(step) {
    const { axis, track, marks, own } = this.plot;
    const epoch = epochOf(epochSpans(marks, this.board.epoch, own), step);
    const along = axis === "step" ? [] : [AXES[axis].at(track.to(step))];
    return [...along, `step ${whole(step)}`, ...(axis === "epoch" || epoch === null ? [] : [`epoch ${epoch}`])].join(" · ");
  }

  /** The numbers of the metric that is shown, as they are in the table. */
  #row(split) {
    return this.board.table?.find((row) => row.metric === this.#metric && row.split === split);
  }

  #describe({ name, unit }) {
    const what = `${name} against ${AXES[this.plot.axis].words}`;
    if (Date.now() - this.#described < DESCRIBED_EVERY && this.canvas.dataset.of === what) return;
    this.#described = Date.now();
    this.canvas.dataset.of = what;
    const words = this.plot.lines.map(({ split, series }) => `${split} ${isOfEpochs(split, series, this.plot.marks) ? "avg" : "batch"} ${series.length > 0 ? valueText(series, series.length - 1, unit) : "has no values yet"}`);
    setAttribute(this.canvas, "aria-label", `${what}: ${words.join(", ")}. The table holds the numbers.`);
  }
}

/** Validation has a point an epoch, and so has the training of a metric that has no value of a batch. */
const isOfEpochs = (split, series, marks) => split !== "train" || series.length <= marks.filter(({ kind }) => kind === "epoch").length;

function valueText(series, at, unit) {
  const suffix = unit ? ` ${unit}` : "";
  const [low, high] = [series.low[at], series.high[at]];
  if (low === high || Number.isNaN(low)) return number(series.mean[at]) + suffix;
  return `${number(series.mean[at])}${suffix} (${number(low, 3)} … ${number(high, 3)})`;
}

function cellText(cell) {
  if (cell === null) return "";
  if (cell.low === cell.high || !isFinite(cell.mean)) return number(cell.mean);
  return `${number(cell.mean)} (${number(cell.low, 3)} … ${number(cell.high, 3)})`;
}

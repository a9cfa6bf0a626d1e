// All metrics at once: a small plot of each, in groups, to be searched, pinned, hidden, and chosen for the large one.

import { fill, freshId, h, section, setAttribute, setText, show } from "./dom.js";
import { number } from "./format.js";
import { keep, kept } from "./keep.js";
import { downsample, extent } from "./series.js";
import { keyOf } from "./store.js";
import { splitNumber } from "./table.js";

const MANY = 4; // metrics that tabs alone show well
const POINT_EVERY = 100; // ms between two values that the tiles show while the pointer moves
const MANY_POINTS = 1000; // more points than a small plot can show
const [WIDTH, HEIGHT] = [132, 40]; // pixels of a small plot
const GROUPS = { lower: "Lower is better", higher: "Higher is better" };

/** Which group a metric belongs to: losses, scores, and what is only read (rates, times, memory). */
const groupOf = ({ better }) => GROUPS[better] ?? "Others";

/** The metrics in the order of the grid: those that are pinned, then group by group; without the hidden ones. */
export function arranged(metrics, { pinned, hidden }, search = "") {
  const wanted = metrics.filter(({ name }) => !hidden.includes(name) && name.toLowerCase().includes(search.toLowerCase()));
  const groups = new Map([["Pinned", []], ...wanted.map((metric) => [groupOf(metric), []])]);
  for (const metric of wanted) groups.get(pinned.includes(metric.name) ? "Pinned" : groupOf(metric)).push(metric);
  return [...groups].filter(([, those]) => those.length > 0).map(([title, those]) => ({ title, metrics: those }));
}

export class Grid {
  #choose;
  #colours;
  #changed;
  #signal;
  #path = null;
  #at = null;
  #soon = null; // the timer behind which the tiles show the values at that step

  /** `choose(name)` shows a metric large, `changed()` is called when one was pinned or hidden. */
  constructor(choose, colours, changed, signal) {
    this.#choose = choose;
    this.#colours = colours;
    this.#changed = changed;
    this.#signal = signal;
    this.marked = { pinned: [], hidden: [] };
    this.search = h("input", { type: "search", class: "nl-field nl-search", placeholder: "Search", "aria-label": "Search the metrics" });
    this.hidden = h("button", { class: "nl-button nl-small", type: "button" });
    this.groups = h("div", { class: "nl-tiles", tabindex: 0, role: "group", "aria-label": "Small plots" });
    this.element = section("All metrics", "grid", this.groups);
    this.element.prepend(h("div", { class: "nl-top" }, this.element.firstElementChild, h("div", { class: "nl-tools" }, this.hidden, this.search)));
    this.search.addEventListener("input", () => changed(), { signal });
    this.hidden.addEventListener("click", () => this.#mark({ hidden: [] }), { signal });
  }

  /** The metrics that have a tab: none that is hidden, those that are pinned first. */
  tabs(metrics) {
    const left = metrics.filter(({ name }) => !this.marked.hidden.includes(name));
    const isPinned = ({ name }) => this.marked.pinned.includes(name);
    return [...left.filter(isPinned), ...left.filter((metric) => !isPinned(metric))];
  }

  /** Read what was pinned and hidden in this run's directory. */
  of(path) {
    if (path === this.#path) return;
    this.#path = path;
    this.marked = { pinned: kept(`pinned in ${path}`, []), hidden: kept(`hidden in ${path}`, []) };
  }

  /** The small plots lie along the axis of the large one, `plot`. */
  update(metrics, chosen, board, store, { axis, track }) {
    show(this.element, metrics.length > MANY);
    if (this.element.hidden || this.element.classList.contains("nl-folded")) return;
    const count = metrics.filter(({ name }) => this.marked.hidden.includes(name)).length;
    show(this.hidden, count > 0);
    setText(this.hidden, `Show ${count} hidden`);
    const make = () => h("div", { role: "group" }, h("h4", { class: "nl-group-name", id: freshId("group") }), h("div", { class: "nl-tile-list" }));
    fill(this.groups, arranged(metrics, this.marked, this.search.value), make, (group, { title, metrics: those }) => {
      const [heading, list] = group.children;
      setText(heading, title);
      setAttribute(group, "aria-labelledby", heading.id);
      fill(list, those, () => this.#tile(), (tile, metric) => this.#show(tile, metric, metric.name === chosen, board, store, axis, track));
    });
  }

  /** Show the values at a step; null: the newest. Soon, because thirty new texts take half a frame. */
  point(step) {
    this.#at = step;
    this.#soon ??= setTimeout(() => {
      this.#soon = null;
      for (const tile of this.groups.querySelectorAll(".nl-tile")) setText(tile.querySelector("b"), this.#value(tile.lines ?? []));
    }, POINT_EVERY);
  }

  #tile() {
    const on = (button, act) => button.addEventListener("click", () => act(tile.dataset.metric), { signal: this.#signal });
    const canvas = h("canvas", { width: 2 * WIDTH, height: 2 * HEIGHT, "aria-hidden": "true" });
    const big = h("button", { class: "nl-tile-plot", type: "button" }, h("span", { class: "nl-tile-name" }), canvas, h("b"));
    const pin = h("button", { class: "nl-tile-mark", type: "button" }, "★");
    const hide = h("button", { class: "nl-tile-mark", type: "button" }, "×");
    const tile = h("div", { class: "nl-tile" }, big, pin, hide);
    on(big, (name) => this.#choose(name));
    on(pin, (name) => this.#mark({ pinned: toggled(this.marked.pinned, name) }));
    on(hide, (name) => this.#mark({ hidden: toggled(this.marked.hidden, name) }));
    return tile;
  }

  #mark(change) {
    this.marked = { ...this.marked, ...change };
    for (const [kind, names] of Object.entries(change)) keep(`${kind} in ${this.#path}`, names);
    this.#changed();
  }

  #show(tile, { name, splits }, chosen, board, store, axis, track) {
    const [big, pin, hide] = tile.children;
    const pinned = this.marked.pinned.includes(name);
    tile.dataset.metric = name;
    tile.lines = splits.map((split) => ({ split, series: store.series.get(keyOf(name, split)) })).filter(({ series }) => series?.length > 0);
    setText(big.firstElementChild, name);
    setAttribute(big, "title", name);
    setAttribute(big, "aria-pressed", String(chosen));
    setAttribute(pin, "aria-pressed", String(pinned));
    setAttribute(pin, "aria-label", pinned ? `Unpin ${name}` : `Pin ${name}`);
    setAttribute(hide, "aria-label", `Hide ${name}`);
    setText(big.lastElementChild, this.#value(tile.lines));
    // A long run grows by less than a pixel a step: drawing it each time would cost more than the large plot.
    const grown = Math.floor(Math.log(Math.max(1, board.trained)) * WIDTH);
    const lengths = tile.lines.map(({ series: { length } }) => (length > MANY_POINTS ? "" : length));
    const drawn = `${name} ${axis} ${grown} ${lengths} ${this.#colours().splits}`;
    const same = tile.of?.length === tile.lines.length && tile.lines.every(({ series }, at) => series === tile.of[at]);
    if ((same && tile.drawn === drawn) || this.#colours().text === "") return;
    tile.drawn = drawn;
    tile.of = tile.lines.map(({ series }) => series);
    draw(big.children[1], tile.lines, board.trained, track, this.#colours());
  }

  #value(lines) {
    const texts = lines.map(({ series }) => {
      const at = this.#at === null ? series.length - 1 : series.nearest(this.#at);
      return at < 0 ? "–" : number(series.mean[at]);
    });
    return texts.join(" · ");
  }
}

const toggled = (names, name) => (names.includes(name) ? names.filter((one) => one !== name) : [...names, name]);

/** Draw the whole run, each metric on a scale of its own. */
function draw(canvas, lines, trained, track, colours) {
  const ctx = canvas.getContext("2d");
  const [width, height] = [canvas.width, canvas.height];
  ctx.clearRect(0, 0, width, height);
  const from = Math.min(1, ...lines.map(({ series }) => series.x[0]));
  const to = Math.max(trained, from + 1);
  const [left, right] = [from, to].map(track.to, track);
  const samples = lines.map(({ split, series }) => ({ split, ...downsample(series, from, to, WIDTH) }));
  const found = extent(samples.map(({ y }) => y), false);
  if (found === null) return;
  const [low, high] = found;
  const scaled = (value) => height - 4 - ((value - low) / (high - low || 1)) * (height - 8);
  samples.forEach(({ split, x, y }) => {
    ctx.strokeStyle = colours.splits[splitNumber([], split)];
    ctx.lineWidth = 2;
    ctx.beginPath();
    let begins = true;
    x.forEach((step, index) => {
      const place = [2 + ((track.to(step) - left) / (right - left)) * (width - 4), scaled(y[index])];
      if (y[index] !== null) begins ? ctx.moveTo(...place) : ctx.lineTo(...place);
      begins = y[index] === null;
    });
    ctx.stroke();
    if (x.length === 1 && y[0] !== null) ctx.strokeRect(width - 8, scaled(y[0]) - 2, 4, 4);
  });
}

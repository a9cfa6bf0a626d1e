// The lines behind the curves: those that the run has left, with the way back to the end of each, and other runs.

import { whyNot } from "./axis.js";
import { freshId, h, icon, setAttribute, setText, show, fill } from "./dom.js";
import { whole } from "./format.js";
import { downsample, smooth } from "./series.js";

const REACH = 8; // pixels between the pointer and a line that it means
const ROOMY = 420; // pixels: in a narrower picture labels would hide the curves
const LONGEST = 26; // characters of a label in the picture

/** What a line is called in the picture: its number, and what was changed on it; or which run it is. */
export function labelOf({ name, changes, run }) {
  const text = run ? run : changes ? `${name} · ${changes}` : `branch ${name}`;
  return text.length > LONGEST ? `${text.slice(0, LONGEST - 1).trimEnd()}…` : text;
}

const stepsOf = (count) => `${whole(count)} ${count === 1 ? "step" : "steps"}`;

/** Why a line cannot be seen along this axis; "" if it can. A branch has the epochs of its run. */
const lackOf = (axis, line) => (axis === "epoch" && !line.run ? "" : whyNot(axis, line)) && `not drawn along the ${axis}: its steps have none`;

/** What the button says. How many steps are taken again is only known where there is a learner. */
export const offerOf = ({ name, again }) => `Go to the end of branch ${name}${again > 0 ? ` (${stepsOf(again)} replayed)` : ""}`;

/** The points of a branch's curve as they are drawn: smoothed as the curve in front of it. */
export function pointsOf(series, [from, to], width, memory) {
  const { meanX, mean } = downsample(series, from, to, width);
  return { x: meanX, y: smooth(meanX, mean, memory) };
}

/** The line that runs within reach of a place, in pixels; null if there is none. */
export function nearest(lines, left, top) {
  let [found, least] = [null, REACH];
  for (const { name, x, y } of lines) {
    for (let at = 0; at < x.length; at++) {
      const after = Math.min(at + 1, x.length - 1);
      const away = distance(left, top, x[at], y[at], x[after], y[after]);
      if (away < least) [found, least] = [name, away];
    }
  }
  return found;
}

/** How far a place is from a stretch of a line. */
function distance(left, top, x1, y1, x2, y2) {
  const [dx, dy] = [x2 - x1, y2 - y1];
  const share = dx || dy ? ((left - x1) * dx + (top - y1) * dy) / (dx * dx + dy * dy) : 0;
  const kept = Math.max(0, Math.min(1, share));
  return Math.hypot(left - x1 - kept * dx, top - y1 - kept * dy);
}

/** Draw the lines behind the curves. */
export const drawBranches = (chart, lines, colours) =>
  within(chart, (ctx) => {
    ctx.globalAlpha = 0.8;
    const runs = [...new Set(lines.map(({ run }) => run).filter(Boolean))];
    for (const line of lines) {
      ctx.strokeStyle = ctx.fillStyle = line.run ? colours.splits[2 + (runs.indexOf(line.run) % 2)] : colours.mark;
      trace(ctx, line, line.run ? 1.5 : 1);
    }
  });

/** In front of the curves: the line that is shown strongly, and a label at the end of each that has room. */
export const drawNames = (chart, lines, lit, colours) =>
  within(chart, (ctx, width, height) => {
    ctx.strokeStyle = ctx.fillStyle = colours.text;
    for (const line of lines) if (line.name === lit) trace(ctx, line, 2);
    ctx.font = `10.5px ${colours.font}`;
    ctx.strokeStyle = colours.surface;
    ctx.lineWidth = 3;
    ctx.lineJoin = "round";
    ctx.textAlign = "left";
    ctx.textBaseline = "top";
    const taken = [];
    for (const line of [...lines].reverse().sort((a, b) => (b.name === lit) - (a.name === lit))) {
      ctx.fillStyle = line.name === lit ? colours.text : colours.muted;
      // The buttons below name them, too; a label without a change would only hide the curve.
      if ((width >= ROOMY && (line.changes || line.run)) || line.name === lit) label(ctx, line, taken, width, height);
    }
  });

/** Draw inside of the plot, in pixels of the page from its upper left corner. */
function within({ ctx, bbox, width }, draw) {
  const ratio = ctx.canvas.width / width;
  ctx.save();
  ctx.scale(ratio, ratio);
  ctx.translate(bbox.left / ratio, bbox.top / ratio);
  ctx.beginPath();
  ctx.rect(0, 0, bbox.width / ratio, bbox.height / ratio);
  ctx.clip();
  draw(ctx, bbox.width / ratio, bbox.height / ratio);
  ctx.restore();
}

function trace(ctx, { x, y, dash }, width) {
  ctx.lineWidth = width;
  ctx.setLineDash(dash);
  ctx.beginPath();
  x.forEach((one, at) => (at === 0 ? ctx.moveTo(one, y[at]) : ctx.lineTo(one, y[at])));
  ctx.stroke();
  ctx.setLineDash([]);
  if (x.length > 3) return;
  x.forEach((one, at) => ctx.fillRect(one - 1.5, y[at] - 1.5, 3, 3)); // a point is no line
}

function label(ctx, { label: text, x, y }, taken, width, height) {
  const last = x[x.length - 1];
  if (!text || !(last >= 0 && last <= width + 1)) return;
  const size = ctx.measureText(text).width;
  const box = placeOf({ x, y }, size, taken, width, height);
  if (box === null) return;
  taken.push(box);
  for (const draw of ["strokeText", "fillText"]) ctx[draw](text, box.left, box.top + 1);
}

/** Where a label has room: behind the end of its line, or above or below it; null for nowhere. */
export function placeOf({ x, y }, size, taken, width, height) {
  const [endX, endY] = [x[x.length - 1], y[y.length - 1]];
  const left = Math.max(2, Math.min(endX, width - 2) - size);
  const over = y.filter((_, at) => x[at] >= left - 4);
  const places = [
    [endX + 5, endY - 6],
    [left, Math.min(...over) - 15],
    [left, Math.max(...over) + 3],
  ];
  for (const [at, top] of places) {
    const box = { left: at, top, width: size, height: 13 };
    const inside = at + size <= width && top >= 0 && top + 13 <= height;
    if (inside && !taken.some((other) => touch(box, other))) return box;
  }
  return null;
}

const touch = (a, b) => a.left < b.left + b.width + 4 && b.left < a.left + a.width + 4 && a.top < b.top + b.height && b.top < a.top + a.height;

/** A button for each line below the picture, and what is offered for the one that was chosen. */
export class Branches {
  #ask;
  #refuse;
  #lit;
  #signal;
  #chosen = null;
  #asked = null;
  #why = "";

  /** `lit(name)` is called with the line to show strongly; null for none. */
  constructor(ask, refuse, lit, signal) {
    this.#ask = ask;
    this.#refuse = refuse;
    this.#lit = lit;
    this.#signal = signal;
    this.list = h("div", { class: "nl-branch-list" });
    this.left = h("div", { class: "nl-branch-row" }, h("span", {}, "Branches"), this.list);
    this.over = h("div", { class: "nl-branch-list" });
    this.offered = h("select", { class: "nl-field nl-select", "aria-label": "Lay another run over the curves" });
    this.beside = h("div", { class: "nl-branch-row", "data-part": "runs" }, h("span", {}, "Other runs"), this.over, this.offered);
    this.more = h("span", { class: "nl-branch-more" });
    this.text = h("span", { class: "nl-branch-text", id: freshId("branch") });
    this.verb = h("span");
    this.go = h("button", { class: "nl-button nl-small", type: "button", "data-cmd": "go_to", "aria-describedby": this.text.id }, icon("play"), this.verb);
    this.offer = h("div", { class: "nl-branch-offer", id: freshId("offer"), hidden: true }, this.text, this.go);
    this.element = h("div", { class: "nl-branches", role: "group", "aria-label": "Lines behind the curves", "data-part": "branches", hidden: true }, this.left, this.beside, this.offer);
    this.left.append(this.more);
    this.go.addEventListener("click", () => this.#go(), { signal });
    this.offered.addEventListener("change", () => this.#layOver(), { signal });
    this.element.addEventListener("keydown", (event) => event.key === "Escape" && this.#leave(), { signal });
  }

  /** `axis` is along what the curves are drawn. */
  update(board, store, axis) {
    const { lines: told = [], more = 0, offered = [] } = board.branches ?? {};
    const lines = told.map((line) => ({ ...line, text: [line.text, lackOf(axis, line)].filter(Boolean).join("; ") }));
    this.lines = lines;
    if (this.#asked !== null && !store.pending.has(this.#asked)) this.#asked = null;
    if (!lines.some(({ name }) => name === this.#chosen)) this.#chosen = null;
    const [runs, left] = [lines.filter(({ run }) => run), lines.filter(({ run }) => !run)];
    const free = board.readonly ? [] : offered.filter((name) => !runs.some(({ run }) => run === name));
    show(this.element, lines.length + free.length > 0);
    show(this.left, left.length > 0);
    show(this.beside, runs.length + free.length > 0);
    show(this.offered, free.length > 0);
    fill(this.offered, ["", ...free], () => h("option"), (option, name) => {
      option.value = name;
      setText(option, name || "Lay over …");
    });
    setText(this.more, more > 0 ? `and ${whole(more)} earlier` : "");
    setAttribute(this.more, "title", more > 0 ? "learner.branches has all of them" : null);
    this.#fill(this.list, left);
    this.#fill(this.over, runs);
    this.#show(board);
  }

  #fill(list, lines) {
    fill(list, lines, () => this.#make(), (button, line) => {
      const chosen = line.name === this.#chosen;
      button.dataset.name = line.name;
      setText(button, labelOf(line));
      setAttribute(button, "title", line.text);
      setAttribute(button, "aria-pressed", String(chosen));
      setAttribute(button, "aria-expanded", String(chosen));
    });
  }

  /** Offer the way to this line; null: offer none. */
  choose(name) {
    this.#chosen = name === this.#chosen ? null : name;
    this.#lit(this.#chosen);
  }

  #leave() {
    this.element.querySelector("[aria-expanded=true]")?.focus(); // the button of the offer goes
    this.choose(null);
  }

  get chosen() {
    return this.#chosen;
  }

  #show(board) {
    const line = this.lines.find(({ name }) => name === this.#chosen);
    show(this.offer, line !== undefined);
    if (line === undefined) return;
    setText(this.text, line.text);
    this.#why = line.run ? "" : board.controls?.go_to ?? "";
    setText(this.verb, line.run ? "Take away" : offerOf(line));
    show(this.go.firstElementChild, !line.run);
    show(this.go, !board.readonly);
    setAttribute(this.go, "aria-disabled", this.#why === "" ? null : "true");
    setAttribute(this.go, "title", this.#why || null);
    setAttribute(this.go, "aria-busy", this.#asked === null ? null : "true");
  }

  #make() {
    const button = h("button", { class: "nl-button nl-small", type: "button", "aria-controls": this.offer.id });
    const on = (event, act) => button.addEventListener(event, act, { signal: this.#signal });
    on("click", () => this.choose(button.dataset.name));
    for (const event of ["pointerenter", "focus"]) on(event, () => this.#lit(button.dataset.name));
    for (const event of ["pointerleave", "blur"]) on(event, () => this.#lit(this.#chosen));
    return button;
  }

  #go() {
    if (this.#why !== "") return this.#refuse(this.#why);
    if (this.#asked !== null) return;
    const { run } = this.lines.find(({ name }) => name === this.#chosen);
    this.#asked = run ? this.#ask("overlay", { run, shown: false }) : this.#ask("go_to", { branch: this.#chosen });
  }

  #layOver() {
    if (this.offered.value !== "") this.#ask("overlay", { run: this.offered.value, shown: true });
    this.offered.value = "";
  }
}

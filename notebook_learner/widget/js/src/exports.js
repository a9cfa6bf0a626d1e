// What is seen as a file: the plot as PNG or SVG, its values as CSV.

import { AXES, trackOf } from "./axis.js";
import { h } from "./dom.js";
import { whole } from "./format.js";
import { Sketch, escaped } from "./sketch.js";
import { colours } from "./theme.js";

const HEAD = 50; // pixels above the plot, for the title and the legend
const INSET = 14;

/** `run-metric.kind`, with nothing in it that a file's name may not have. */
export const fileName = (title, metric, kind) => `${`${title}-${metric}`.replace(/[^\p{L}\p{N}._-]/gu, "_").slice(0, 120)}.${kind.toLowerCase()}`;

// -- the picture ------------------------------------------------------------------------------------------

/** Draw what the plot shows on a canvas, or on what takes its place, below a title and a legend. */
export function paint(ctx, seen, title, look) {
  const { size, place } = seen;
  const [left, top, width, height] = seen.box;
  const ratio = ctx.canvas.width / size[0];
  const scaled = (draw, ...given) => {
    ctx.save();
    ctx.scale(ratio, ratio);
    draw(ctx, seen, look, ...given);
    ctx.restore();
  };
  // As uPlot's chart is for those who draw on it.
  const chart = {
    ctx,
    width: size[0],
    bbox: { left: left * ratio, top: (top + HEAD) * ratio, width: width * ratio, height: height * ratio },
    valToPos: (value, scale, onCanvas) => (onCanvas ? (left + place(value, scale)) * ratio : place(value, scale)), // only asked for places of the axis
  };
  scaled(drawHead, title);
  seen.behind(chart);
  scaled(drawPlot);
  seen.before(chart);
}

function drawHead(ctx, { size, lines, thin, smoothing }, look, title) {
  ctx.fillStyle = look.background;
  ctx.fillRect(0, 0, size[0], size[1] + HEAD);
  ctx.fillStyle = look.text;
  ctx.font = `600 14px ${look.font}`;
  let text = title;
  while (text.length > 1 && ctx.measureText(text).width > size[0] - 2 * INSET) text = `${text.slice(0, -2)}…`;
  ctx.fillText(text, INSET, 24);
  ctx.font = `12px ${look.font}`;
  ctx.lineWidth = 2;
  let x = INSET;
  const runs = thin.filter(Boolean);
  const behind = thin.map((run) => ({ name: run || "branches", colour: run ? look.splits[2 + (runs.indexOf(run) % 2)] : look.mark, dash: [] }));
  for (const { name, colour, dash } of [...lines, ...behind]) {
    ctx.strokeStyle = colour;
    trace(ctx, [[x, 41], [x + 20, 41]], dash);
    ctx.fillText(name, x + 26, 45);
    x += ctx.measureText(name).width + 44;
  }
  ctx.fillStyle = look.muted;
  const note = `smoothing ${smoothing}`;
  if (x + ctx.measureText(note).width < size[0]) ctx.fillText(note, x, 45);
}

function drawPlot(ctx, { axes: [steps, values, epochs], box, lines, place }, look) {
  const [left, , width, height] = box;
  ctx.translate(left, box[1] + HEAD);
  ctx.font = `11px ${look.font}`;
  ctx.fillStyle = look.muted;
  ctx.strokeStyle = look.grid;
  ctx.lineWidth = 1;
  ctx.textAlign = "right";
  ctx.textBaseline = "middle";
  for (const [value, text] of values) {
    const y = Math.round(place(value, "y")) + 0.5;
    trace(ctx, [[0, y], [width, y]], []);
    ctx.fillText(text, -6, y);
  }
  ctx.textAlign = "center";
  ctx.textBaseline = "top";
  for (const [value, text] of steps) ctx.fillText(text, place(value, "x"), height + 5);
  for (const [value, text] of epochs) ctx.fillText(text, place(value, "x"), height + 22);
  ctx.beginPath();
  ctx.rect(0, 0, width, height);
  ctx.clip();
  for (const line of lines) {
    ctx.strokeStyle = ctx.fillStyle = line.colour;
    for (const name of ["raw", "smooth"]) {
      const points = line[name].map(([x, y]) => [place(x, "x"), y === null ? y : place(y, "y")]);
      ctx.tag = ` data-split="${escaped(line.name)}" data-line="${name}"`; // for those who read the file
      ctx.globalAlpha = line.faint && name === "raw" ? 1 / 3 : 1;
      ctx.lineWidth = name === "raw" ? 1.5 : 2;
      trace(ctx, points, line.dash);
      ctx.tag = "";
      ctx.globalAlpha = 1;
      if (line.dots && name === "raw") for (const [x, y] of points) dot(ctx, x, y);
    }
  }
}

/** A line through points, with gaps where there is no value. */
function trace(ctx, points, dash) {
  ctx.setLineDash(dash);
  ctx.beginPath();
  points.forEach(([x, y], at) => y !== null && ctx[points[at - 1]?.[1] == null ? "moveTo" : "lineTo"](x, y));
  ctx.stroke();
  ctx.setLineDash([]);
}

function dot(ctx, x, y) {
  if (y === null) return;
  ctx.beginPath();
  ctx.arc(x, y, 2.5, 0, 7);
  ctx.fill();
}

export function svgOf(seen, title, look) {
  const [width, height] = [seen.size[0], seen.size[1] + HEAD];
  const sketch = new Sketch(width);
  paint(sketch, seen, title, look);
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="${escaped(look.font)}">
<title>${escaped(title)}</title>
${sketch}
</svg>
`;
}

function pngOf(seen, title, look) {
  const scale = Math.max(2, Math.ceil(devicePixelRatio));
  const canvas = h("canvas", { width: seen.size[0] * scale, height: (seen.size[1] + HEAD) * scale });
  paint(canvas.getContext("2d"), seen, title, look);
  return new Promise((done) => canvas.toBlob(done));
}

// -- the values -------------------------------------------------------------------------------------------

/** A name in the first row: no formula of a spreadsheet, whoever has chosen it. */
function named(name) {
  const text = /^[=+\-@\t\r]/.test(name) ? `'${name}` : name;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** With all the digits that the number has: nan, inf, 1e-7. */
const digits = (value) => String(value).toLowerCase().replace("infinity", "inf");

/**
 * All that the page has of some lines; of a long run that is no value of each step, and then a row says of
 * which steps it is. `widest` is the most steps that a row stands for, `end` the run's last step. `tracks` are other
 * axes by the name of the column that says where a row's step lies there.
 */
export function csvOf(lines, end, tracks = {}) {
  const long = lines.some(({ series }) => series.joined > 0);
  const heads = lines.map(({ split, series }) => (series.joined > 0 ? [`${split} mean`, `${split} lowest`, `${split} highest`] : [split]));
  const rows = new Map();
  let widest = 1;
  lines.forEach(({ series: { length, joined, x, mean, low, high } }, which) => {
    for (let at = 0; at < length; at++) {
      const from = x[at];
      const to = at >= joined ? from : at + 1 < length ? x[at + 1] - 1 : Math.max(from, end);
      widest = Math.max(widest, to - from + 1);
      const key = `${from} ${to}`;
      if (!rows.has(key)) rows.set(key, [from, to, ...heads.map((names) => names.map(() => ""))]);
      rows.get(key)[which + 2] = (joined > 0 ? [mean, low, high] : [mean]).map((column) => digits(column[at]));
    }
  });
  const sorted = [...rows.values()].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const along = Object.values(tracks);
  const places = (step) => along.map((track) => Number(track.to(step).toPrecision(9)));
  const rest = sorted.map(([from, to, ...cells]) => [from, to, ...cells, ...places(from)]);
  const texts = [["step", "to", ...heads.flat().map(named), ...Object.keys(tracks)], ...rest].map(([from, to, ...cells]) => [from, ...(long ? [to] : []), cells].join());
  return { text: `${texts.join("\r\n")}\r\n`, widest };
}

// -- the buttons ------------------------------------------------------------------------------------------

export class Exports {
  #curves;
  #tell;

  /** `tell(ok, text)` says what was done. */
  constructor(curves, tell, signal) {
    this.#curves = curves;
    this.#tell = tell;
    this.element = h("div", { class: "nl-joined", role: "group", "aria-label": "Save", "data-part": "exports" });
    for (const kind of ["PNG", "SVG", "CSV"]) {
      const label = kind === "CSV" ? "Save the values as CSV" : `Save the plot as ${kind}`;
      const button = h("button", { class: "nl-button nl-small", type: "button", "aria-label": label, title: label }, kind);
      button.addEventListener("click", () => this.#save(kind), { signal });
      this.element.append(button);
    }
  }

  async #save(kind) {
    const { board, metric, panel, plot } = this.#curves;
    const name = fileName(board.title, metric, kind);
    let [content, note] = [null, ""];
    if (kind === "CSV") {
      const tracks = { epoch: trackOf("epoch", board), seconds: trackOf("time", board) };
      const { text, widest } = csvOf(plot.lines, board.trained, Object.fromEntries(Object.entries(tracks).filter(([, track]) => track !== null)));
      const whence = board.readonly ? `Artifacts(${JSON.stringify(board.directory)})` : "learner.history";
      [content, note] = [text, widest > 1 ? `: a row is up to ${whole(widest)} steps; ${whence}.to_pandas() has each of them` : ""];
    } else {
      const seen = await this.#curves.seen();
      if (seen.size === undefined) return this.#tell(false, "nothing is drawn yet");
      const look = { ...colours(panel), background: getComputedStyle(panel).backgroundColor };
      content = await (kind === "PNG" ? pngOf : svgOf)(seen, `${board.title} · ${metric}${plot.axis === "step" ? "" : ` along the ${AXES[plot.axis].words}`}`, look);
    }
    download(new Blob([content], { type: { PNG: "image/png", SVG: "image/svg+xml", CSV: "text/csv" }[kind] }), name);
    this.#tell(true, `saved ${name}${note}`);
  }
}

function download(blob, name) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link); // notebooks in editors hear of clicks by the page
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000); // some read it only after the click
}

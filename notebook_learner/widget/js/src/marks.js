// What happened along the way: thin lines where epochs end, small signs at the upper edge.

const WORDS = { epoch: "epoch", checkpoint: "checkpoint", pause: "paused", rewind: "rewound", breakpoint: "breakpoint", edit: "edited", fork: "forked" };

/** Pixels of the canvas to one of the page. */
const ratioOf = (chart) => chart.ctx.canvas.width / chart.width;

export const wordOf = (kind) => WORDS[kind] ?? kind;

/** The kinds of signs above the curves, for a legend. */
export const signsOf = (marks) => [...new Set(marks.map(({ kind }) => kind))].filter((kind) => kind !== "epoch").sort();

/** The epochs as stretches of steps; the last one may still be going on. */
export function epochSpans(marks, epoch, [oldest, newest]) {
  const ends = marks.filter(({ kind }) => kind === "epoch").sort((a, b) => a.x - b.x);
  let from = Math.min(0, oldest);
  const spans = ends.map(({ x, text }, at) => {
    const number = Number(/\d+/.exec(text)?.[0] ?? NaN);
    // Of a long run only the newest marks are kept: where the first of them began is not known.
    const span = { from: at === 0 && number !== 1 ? x : from, to: x, number, ended: true };
    from = x;
    return span;
  });
  const last = spans[spans.length - 1];
  if (newest > from && epoch != null && epoch > (last?.number ?? 0)) spans.push({ from, to: newest, number: epoch, ended: false });
  return spans.filter(({ number }) => Number.isFinite(number));
}

/** Numbers to write below the axis, in the middle of each epoch, as many as there is room for. */
export function epochLabels(spans, [from, to], width) {
  const seen = spans.filter((span) => span.to > span.from && span.to > from && span.from < to);
  if (seen.length === 0) return [];
  const pixels = width / (to - from || 1);
  const every = everyNth(seen, pixels, 30);
  return seen
    .filter(({ number }) => every === 1 || number % every === 0)
    .map((span) => ({ span, left: Math.max(span.from, from), right: Math.min(span.to, to) }))
    .filter(({ left, right }) => every > 1 || (right - left) * pixels >= 12)
    .map(({ span, left, right }) => ({ at: (left + right) / 2, text: String(span.number) }));
}

/** One epoch of how many to name or draw, when each needs so many pixels. */
function everyNth(spans, pixels, needed) {
  const usual = Math.max(...spans.map((span) => span.to - span.from)) * pixels;
  return [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000].find((one) => one * usual >= needed) ?? 10_000;
}

/** The marks at a place, apart from the ends of epochs, within reach of it. */
export function nearestMarks(marks, x, reach) {
  return marks.filter((mark) => mark.kind !== "epoch" && Math.abs(mark.x - x) <= reach).slice(-3);
}

export function epochOf(spans, x) {
  return spans.find((span) => x > span.from && x <= span.to)?.number ?? null;
}

/** Lines where epochs end, below the curves. */
export function drawLines(chart, spans, colours) {
  const { ctx, bbox } = chart;
  const ratio = ratioOf(chart);
  ctx.save();
  ctx.strokeStyle = colours.line;
  ctx.lineWidth = ratio;
  ctx.setLineDash([]);
  ctx.beginPath();
  const pixels = Math.abs(chart.valToPos(1, "x") - chart.valToPos(0, "x"));
  const every = everyNth(spans, pixels, 12);
  for (const span of spans) {
    const x = Math.round(chart.valToPos(span.to, "x", true)) + 0.5;
    if (!span.ended || x < bbox.left || x > bbox.left + bbox.width || span.number % every !== 0) continue;
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
  }
  ctx.stroke();
  ctx.restore();
}

/** The marks that have room side by side. A breakpoint goes before what happened at its step besides. */
export function apart(marks, gap) {
  const kept = [];
  for (const mark of marks) {
    const last = kept[kept.length - 1];
    if (last === undefined || Math.abs(mark.x - last.x) >= gap) kept.push(mark);
    else if (mark.kind === "breakpoint") kept[kept.length - 1] = mark;
  }
  return kept;
}

/** Where a rewind would lead. */
export function drawTarget(chart, target, colours) {
  if (target === null) return;
  const { ctx, bbox } = chart;
  const ratio = ratioOf(chart);
  const x = chart.valToPos(target, "x", true);
  if (x < bbox.left - 1 || x > bbox.left + bbox.width + 1) return;
  ctx.save();
  ctx.fillStyle = colours.accent;
  // What would be taken back.
  ctx.globalAlpha = 0.1;
  ctx.fillRect(x, bbox.top, bbox.left + bbox.width - x, bbox.height);
  ctx.globalAlpha = 1;
  ctx.fillRect(Math.round(x - ratio), bbox.top - 4 * ratio, 2 * ratio, bbox.height + 4 * ratio);
  ctx.restore();
}

/** Signs above the curves, values that are not finite at the lower edge, and what the rows below mean. */
export function drawGlyphs(chart, { marks, bad, axis = "step", epochs }, colours) {
  const { ctx, bbox } = chart;
  const ratio = ratioOf(chart);
  ctx.save();
  const there = marks.map(({ kind, x }) => ({ kind, x: chart.valToPos(x, "x", true) }));
  const inside = there.filter(({ kind, x }) => kind !== "epoch" && x >= bbox.left - 1 && x <= bbox.left + bbox.width + 1);
  for (const { kind, x } of apart(inside, 4 * ratio)) drawMark(ctx, kind, x, bbox, ratio, colours);
  ctx.fillStyle = colours.bad;
  for (const one of bad) {
    const [x, y] = [chart.valToPos(one, "x", true), bbox.top + bbox.height];
    polygon(ctx, [[x - 4 * ratio, y], [x + 4 * ratio, y], [x, y - 6 * ratio]]);
  }
  ctx.fillStyle = colours.muted;
  ctx.font = `${10 * ratio}px ${colours.font}`;
  ctx.textAlign = "right";
  ctx.textBaseline = "top";
  const below = bbox.top + bbox.height;
  ctx.fillText(axis, bbox.left - 8 * ratio, below + 6 * ratio);
  if (epochs) ctx.fillText("epoch", bbox.left - 8 * ratio, below + 23 * ratio);
  ctx.restore();
}

function drawMark(ctx, kind, x, bbox, ratio, colours) {
  const [r, y] = [4 * ratio, bbox.top - 8 * ratio];
  ctx.strokeStyle = ctx.fillStyle = kind === "breakpoint" ? colours.bad : colours.mark;
  ctx.lineWidth = 1.6 * ratio;
  if (kind === "checkpoint") polygon(ctx, [[x, y - r], [x + r, y], [x, y + r], [x - r, y]]);
  else if (kind === "pause") {
    ctx.fillRect(x - 0.8 * r, y - 0.9 * r, 0.55 * r, 1.8 * r);
    ctx.fillRect(x + 0.25 * r, y - 0.9 * r, 0.55 * r, 1.8 * r);
  } else if (kind === "rewind") polygon(ctx, [[x + r * 0.8, y - r], [x + r * 0.8, y + r], [x - r, y]]);
  else {
    ctx.beginPath();
    ctx.arc(x, y, r * 0.8, 0, 2 * Math.PI);
    if (kind === "breakpoint") ctx.fill();
    else ctx.stroke();
  }
  if (kind === "checkpoint") return;
  ctx.globalAlpha = 0.55;
  ctx.lineWidth = ratio;
  ctx.setLineDash([2 * ratio, 3 * ratio]);
  ctx.beginPath();
  ctx.moveTo(Math.round(x) + 0.5, bbox.top);
  ctx.lineTo(Math.round(x) + 0.5, bbox.top + bbox.height);
  ctx.stroke();
  ctx.setLineDash([]);
  ctx.globalAlpha = 1;
}

function polygon(ctx, points) {
  ctx.beginPath();
  points.forEach(([x, y], at) => (at === 0 ? ctx.moveTo(x, y) : ctx.lineTo(x, y)));
  ctx.closePath();
  ctx.fill();
}

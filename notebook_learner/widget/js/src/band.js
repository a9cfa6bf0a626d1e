// A line of more points than there is room for, drawn as the band that it covers: to stroke its zigzag takes
// several times as long.

import uPlot from "uplot";

const DENSE = 0.5; // points a pixel of the page from which on a line is a band
const straight = uPlot.paths.linear();

/** The upper and the lower edge of a line in columns of a width, as runs without a gap: [left, low, high] each. */
export function bandOf(xs, ys, from, to, column) {
  const runs = [];
  let run = null;
  let before = null; // the last point, from which the line comes
  for (let at = from; at <= to; at++) {
    const y = ys[at];
    if (y === undefined) continue; // a point of another line
    if (y === null) {
      run = before = null;
      continue;
    }
    const left = Math.floor(xs[at] / column) * column;
    if (run === null) runs.push((run = []));
    const last = run[run.length - 1];
    if (last?.[0] === left) {
      last[1] = Math.min(last[1], y);
      last[2] = Math.max(last[2], y);
    } else run.push(before === null ? [left, y, y] : [left, Math.min(y, before), Math.max(y, before)]);
    before = y;
  }
  return runs;
}

/** The way to draw a raw line, for uPlot, which fills what this gives in the colour of the line. */
export function rawPath(chart, series, from, to) {
  const [xs, ys] = [chart.data[0], chart.data[series]];
  let points = 0;
  for (let at = from; at <= to; at++) if (ys[at] != null) points++;
  const [first, last] = [xs[from], xs[to]].map((x) => chart.valToPos(x, "x", true));
  if (points < (DENSE * (last - first)) / uPlot.pxRatio || points < 50) return { ...straight(chart, series, from, to), fill: null };
  const fill = new Path2D();
  const half = (chart.series[series].width * uPlot.pxRatio) / 2;
  const places = xs.map((x) => chart.valToPos(x, "x", true));
  const heights = ys.map((y) => (y == null ? y : chart.valToPos(y, "y", true)));
  // With two points a column, and the one before, each has the lowest and the highest of some bucket.
  const column = Math.max(2 * uPlot.pxRatio, Math.ceil((2 * (last - first)) / points));
  const middle = column / 2;
  for (const run of bandOf(places, heights, from, to, column)) {
    run.forEach(([left, low], at) => (at === 0 ? fill.moveTo(left + middle - half, low - half) : fill.lineTo(left + middle, low - half)));
    for (const [left, , high] of run.reverse()) fill.lineTo(left + middle + half, high + half);
    fill.closePath();
  }
  return { stroke: null, fill, clip: null, band: null, gaps: null, flags: 1 };
}

// One curve as the page holds it: columns of numbers that grow, and what is computed from them to be
// drawn. Nothing here knows of a page, so all of it is tested without one.

// Beyond this many points the older half is halved again, so that a page left open for days stays small.
const MOST_POINTS = 1 << 21;

const COLUMNS = ["x", "low", "high", "mean"];

export class Series {
  constructor(capacity = 256, mostPoints = MOST_POINTS) {
    this.length = 0;
    this.revision = 0; // grows with each change
    this.joined = 0; // so many of the first points may stand for several steps each
    this.mostPoints = mostPoints;
    for (const column of COLUMNS) this[column] = new Float64Array(capacity);
  }

  /** From a snapshot's buffer: x[n], low[n], high[n], mean[n], each of so many values from that x on. */
  static fromBuckets(numbers, points, size = 1) {
    const series = new Series(Math.max(256, points * 2));
    COLUMNS.forEach((column, at) => series[column].set(numbers.subarray(at * points, (at + 1) * points)));
    series.length = points;
    series.joined = size > 1 ? points : 0;
    return series;
  }

  /**
   * A value at a step. A step that is there already is replaced; a step before the last one means that
   * training was taken back, and what came after it never happened.
   */
  append(x, value) {
    if (this.length > 0 && x <= this.x[this.length - 1]) this.length = this.indexAt(x);
    if (this.length === this.mostPoints) this.#thin();
    if (this.length === this.x.length) this.#grow();
    const at = this.length++;
    this.joined = Math.min(this.joined, at);
    this.revision++;
    this.x[at] = x;
    this.low[at] = this.high[at] = this.mean[at] = value;
  }

  /** The first place whose x is at least this one; `length` if there is none. */
  indexAt(x) {
    let from = 0;
    let to = this.length;
    while (from < to) {
      const middle = (from + to) >> 1;
      if (this.x[middle] < x) from = middle + 1;
      else to = middle;
    }
    return from;
  }

  /** The place nearest to x; -1 when there are no points. */
  nearest(x) {
    const after = this.indexAt(x);
    if (after === 0) return this.length > 0 ? 0 : -1;
    if (after === this.length) return after - 1;
    return this.x[after] - x < x - this.x[after - 1] ? after : after - 1;
  }

  #grow() {
    const capacity = Math.max(256, this.length * 2);
    for (const column of COLUMNS) {
      const larger = new Float64Array(capacity);
      larger.set(this[column].subarray(0, this.length));
      this[column] = larger;
    }
  }

  /** Join the older half in pairs. The extremes are kept: a spike is never lost. */
  #thin() {
    const half = this.length >> 1;
    const pairs = half >> 1;
    for (let pair = 0; pair < pairs; pair++) {
      const [a, b] = [2 * pair, 2 * pair + 1];
      this.low[pair] = lower(this.low[a], this.low[b]);
      this.high[pair] = higher(this.high[a], this.high[b]);
      this.mean[pair] = middleOf(this.mean[a], this.mean[b]);
      this.x[pair] = this.x[a];
    }
    for (const column of COLUMNS) this[column].copyWithin(pairs, pairs * 2, this.length);
    this.length -= pairs;
    this.joined = Math.max(pairs, this.joined - pairs);
  }
}

const lower = (a, b) => (Number.isNaN(a) ? b : Number.isNaN(b) ? a : Math.min(a, b));
const higher = (a, b) => (Number.isNaN(a) ? b : Number.isNaN(b) ? a : Math.max(a, b));
const middleOf = (a, b) => (Number.isNaN(a) ? b : Number.isNaN(b) ? a : (a + b) / 2);

/** The widest power of two of steps that is at most `pixels` pixels wide. */
export function bucketWidth(from, to, width, pixels = 2) {
  const steps = ((to - from) / Math.max(1, width)) * pixels;
  return steps > 0 && Number.isFinite(steps) ? 2 ** Math.floor(Math.log2(steps)) : 1;
}

/**
 * What of a series is worth drawing between two steps on so many pixels.
 *
 * Points that fall into one bucket of at most two pixels are drawn as their lowest and highest, in the
 * order in which they came. Buckets lie at multiples of their width, a power of two, so that a growing
 * or moving picture does not flicker. What is not finite is a gap in the line, and is listed.
 *
 * @returns {{x: number[], y: (number|null)[], meanX: number[], mean: number[], bad: number[],
 *            visited: number}} `visited` is the work done, in points.
 */
export function downsample(series, from, to, width) {
  const out = { x: [], y: [], meanX: [], mean: [], bad: [], visited: 0 };
  // One point more on either side, so that the line reaches the edges.
  const first = Math.max(0, series.indexAt(from) - 1);
  const last = Math.min(series.length, series.indexAt(to) + 2);
  if (last <= first) return out;
  const step = bucketWidth(from, to, width);
  if (series.indexAt(to) - series.indexAt(from) <= width / 2) {
    for (let at = first; at < last; at++) emitPoint(series, at, out);
    return out;
  }
  for (let at = first; at < last; ) at = emitBucket(series, at, last, step, out);
  return out;
}

function emitPoint(series, at, out) {
  const { x, low, high, mean } = series;
  out.visited++;
  if (!isFinite(low[at]) || !isFinite(high[at])) out.bad.push(x[at]);
  const [drawnLow, drawnHigh] = [finite(low[at], mean[at]), finite(high[at], mean[at])];
  if (low[at] === high[at] || drawnLow === null || drawnHigh === null || drawnLow === drawnHigh) {
    out.x.push(x[at]);
    out.y.push(drawnLow ?? drawnHigh);
  } else {
    // Many steps in one point: both extremes, the second half-way to the next point.
    const reach = at + 1 < series.length ? (x[at + 1] - x[at]) / 2 : 0.25;
    pushPair(out, x[at], x[at] + reach, drawnLow, drawnHigh, nearerFirst(out, drawnLow, drawnHigh));
  }
  if (isFinite(mean[at])) {
    out.meanX.push(x[at]);
    out.mean.push(mean[at]);
  }
}

function emitBucket(series, start, last, step, out) {
  const { x, low, high, mean } = series;
  const left = Math.floor(x[start] / step) * step;
  const right = left + step;
  let [lowest, lowestAt, highest, highestAt] = [Infinity, -1, -Infinity, -1];
  let [sum, sumX, count, bad] = [0, 0, 0, 0];
  let at = start;
  // Once for each point of a long run: plain numbers only, and `v - v === 0` for "v is finite".
  for (; at < last && x[at] < right; at++) {
    const a = low[at];
    const b = high[at];
    const m = mean[at];
    if (a - a === 0) {
      if (a < lowest) {
        lowest = a;
        lowestAt = at;
      }
    } else bad++;
    if (b - b === 0) {
      if (b > highest) {
        highest = b;
        highestAt = at;
      }
    } else bad++;
    if (m - m === 0) {
      sum += m;
      sumX += x[at];
      count++;
    }
  }
  out.visited += at - start;
  if (lowestAt < 0 && highestAt >= 0) lowest = highest;
  if (highestAt < 0 && lowestAt >= 0) highest = lowest;
  if (lowestAt < 0 && highestAt < 0) {
    out.x.push(left + step / 4);
    out.y.push(null);
  } else if (lowest === highest) {
    out.x.push(left + step / 4);
    out.y.push(lowest);
  } else {
    const lowFirst = lowestAt === highestAt ? nearerFirst(out, lowest, highest) : lowestAt < highestAt;
    pushPair(out, left + step / 4, left + (3 * step) / 4, lowest, highest, lowFirst);
  }
  if (bad > 0) {
    out.bad.push(left + step / 2);
    if (out.y[out.y.length - 1] !== null) {
      out.x.push(left + (7 * step) / 8);
      out.y.push(null);
    }
  }
  if (count > 0) {
    out.meanX.push(sumX / count);
    out.mean.push(sum / count);
  }
  return at;
}

const finite = (value, otherwise) => (isFinite(value) ? value : isFinite(otherwise) ? otherwise : null);

function pushPair(out, x1, x2, low, high, lowFirst) {
  out.x.push(x1, x2);
  if (lowFirst) out.y.push(low, high);
  else out.y.push(high, low);
}

function nearerFirst(out, low, high) {
  const before = out.y.length > 0 ? out.y[out.y.length - 1] : null;
  return before === null || Math.abs(before - low) <= Math.abs(before - high);
}

/**
 * An exponential moving average whose memory is a number of steps, not of points, so that the same
 * slider means the same for training and for validation, near and far. It starts without bias.
 */
export function smooth(x, y, memory) {
  if (!(memory > 0)) return Array.from(y);
  const out = new Array(y.length);
  let [total, weight] = [0, 0];
  for (let at = 0; at < y.length; at++) {
    const kept = at > 0 ? Math.exp(-(x[at] - x[at - 1]) / memory) : 0;
    total = total * kept + y[at];
    weight = weight * kept + 1;
    out[at] = total / weight;
  }
  return out;
}

/** How many steps a slider from 0 to 1 remembers, of a picture this many steps wide. Less than half a step
 * is none: the label says "off" there, and then the line has to run through the points. */
export function memoryOf(slider, span) {
  const memory = slider * slider * span * 0.2;
  return memory < 0.5 ? 0 : memory;
}

/** Where the recent window begins: about one epoch, and never less than 100 steps. */
export function recentFrom(newest, epochEnds) {
  const ends = epochEnds.filter((x) => x <= newest);
  const epoch = ends.length > 1 ? ends[ends.length - 1] - ends[ends.length - 2] : (ends[0] ?? 0);
  return Math.max(0, newest - Math.max(100, epoch));
}

/** One x column for several lines; a line that has no point at an x has `undefined` there. */
export function align(lines) {
  const all = new Set();
  for (const { x } of lines) for (const value of x) all.add(value);
  const xs = Float64Array.from(all).sort();
  const ys = lines.map(({ x, y }) => {
    const column = new Array(xs.length);
    let at = 0;
    for (let point = 0; point < x.length; point++) {
      while (xs[at] < x[point]) at++;
      column[at] = y[point];
    }
    return column;
  });
  return [Array.from(xs), ...ys];
}

/** Lowest and highest of what is drawn, those above zero when the scale is logarithmic. */
export function extent(columns, log) {
  let [low, high] = [Infinity, -Infinity];
  for (const column of columns) {
    for (const value of column) {
      if (value == null || !isFinite(value) || (log && value <= 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high ? [low, high] : null;
}

/** The range of the curves, and of the branches as far as they leave the curves half of the height. */
export function besides(own, thin, log) {
  if (own === null || thin === null) return own ?? thin;
  const [to, from] = log ? [Math.log, Math.exp] : [Number, Number];
  const [low, high] = own.map(to);
  const room = (high - low) / 2 || Infinity;
  return [from(Math.max(Math.min(low, to(thin[0])), low - room)), from(Math.min(Math.max(high, to(thin[1])), high + room))];
}

/** At most so many rows that say of each stretch of steps the mean and the extremes of every series. */
export function tabulate(all, from, to, rows) {
  const first = Math.ceil(from);
  const last = Math.floor(to);
  const step = Math.max(1, Math.ceil((last - first + 1) / rows));
  const out = [];
  for (let left = first; left <= last; left += step) {
    const right = Math.min(last, left + step - 1);
    const cells = all.map((series) => summary(series, left, right));
    if (cells.some((cell) => cell !== null)) out.push({ from: left, to: right, cells });
  }
  return out;
}

function summary(series, left, right) {
  let [low, high, sum, count] = [NaN, NaN, 0, 0];
  for (let at = series.indexAt(left); at < series.length && series.x[at] <= right; at++) {
    low = lower(low, series.low[at]);
    high = higher(high, series.high[at]);
    sum += series.mean[at];
    count++;
  }
  return count > 0 ? { low, high, mean: sum / count } : null;
}

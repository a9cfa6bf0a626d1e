// Numbers as people read them.

/** A metric's value, with four digits that count: as renderer/text.py writes it into the table. */
export function number(value, digits = 4) {
  if (value === undefined || value === null) return "–";
  if (Number.isNaN(value)) return "nan";
  if (!isFinite(value)) return value > 0 ? "inf" : "−inf";
  if (value === 0) return "0";
  const [mantissa, power] = value.toExponential(digits - 1).split("e");
  const exponent = Number(power); // after rounding, so 9999.96 counts as 10,000
  if (exponent < -2 || exponent >= 6) return minus(`${mantissa.replace(/\.?0+$/, "")}e${exponent}`);
  if (exponent >= digits - 1) return minus(Math.round(value).toLocaleString("en-US"));
  return minus(value.toPrecision(digits));
}

/** A step, or a count: 12,400. */
export function whole(value) {
  return minus(Math.round(value).toLocaleString("en-US"));
}

/** Labels of an axis: as many decimals as tell neighbours apart, and no more. */
export function ticks(values) {
  const gaps = values.slice(1).map((value, at) => Math.abs(value - values[at]));
  const gap = Math.min(...gaps.filter((one) => one > 0));
  const most = Math.max(...values.map(Math.abs));
  return values.map((value) => {
    if (value === 0) return "0";
    if (most >= 1e6 || most < 1e-3 || !isFinite(gap)) return number(value, 3);
    const decimals = [0, 1, 2, 3, 4, 5].find((one) => isWhole(gap * 10 ** one)) ?? 6;
    return minus(value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }));
  });
}

/** Steps below an axis: 500, 2k, 1.5M. */
export function steps(values) {
  const gap = values.length > 1 ? values[1] - values[0] : 1;
  return values.map((value) => {
    if (value !== Math.round(value)) return "";
    if (gap >= 100_000 && value >= 1e6) return `${trim(value / 1e6)}M`;
    if (gap >= 1000 && value >= 1000) return `${trim(value / 1000)}k`;
    return whole(value);
  });
}

const isWhole = (value) => Math.abs(value - Math.round(value)) < 1e-6 * Math.max(1, Math.abs(value));
const trim = (value) => String(Math.round(value * 100) / 100);
const minus = (text) => text.replace(/^-/, "−");

/** Where a logarithmic axis has its lines: 1, 2, 5 of each power of ten, or fewer when it is long. */
export function logTicks(low, high) {
  const decades = Math.log10(high / low);
  const leading = decades > 8 ? [1] : decades > 3 ? [1] : decades > 1.2 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9];
  const every = Math.max(1, Math.ceil(decades / 8));
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    if (power % every !== 0) continue;
    for (const digit of leading) {
      const value = digit * 10 ** power;
      if (value >= low * 0.999999 && value <= high * 1.000001) found.push(value);
    }
  }
  return found;
}

const two = (value) => String(value).padStart(2, "0");

/** A time span in its two largest units: as renderer/text.py writes it. */
export function duration(seconds) {
  if (!isFinite(seconds) || seconds < 0) return "?";
  if (seconds < 0.9995) return `${Math.round(1000 * seconds)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const all = Math.round(seconds);
  if (all < 60) return `${all} s`;
  if (all < 3600) return `${Math.floor(all / 60)} min ${two(all % 60)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 24 * 60) return `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
  const hours = Math.round(seconds / 3600);
  return `${Math.floor(hours / 24)} d ${two(hours % 24)} h`;
}

/** Epochs below an axis: 0, 0.5, 1. */
export const places = (values) => ticks(values.map((value) => Math.round(value * 1e6) / 1e6));

/** Time spans below an axis: 20 s, 1:30 min, 5 min, 1:30 h, 2 d. */
export function spans(values) {
  const gap = values.length > 1 ? values[1] - values[0] : 1;
  const most = Math.max(...values);
  const parts = (value, unit, small, name) => `${Math.floor(value / unit)}:${two(Math.round((value % unit) / small))} ${name}`;
  if (gap >= 86_400) return values.map((value) => `${Math.round(value / 86_400)} d`);
  if (gap >= 3600) return values.map((value) => `${Math.round(value / 3600)} h`);
  if (most >= 7200 && gap >= 60) return values.map((value) => parts(value, 3600, 60, "h"));
  if (most >= 7200) return values.map((value) => `${Math.floor(value / 3600)}:${two(Math.floor((value % 3600) / 60))}:${two(Math.round(value % 60))} h`);
  if (gap >= 60) return values.map((value) => `${Math.round(value / 60)} min`);
  if (most >= 120) return values.map((value) => parts(value, 60, 1, "min"));
  return places(values).map((text) => `${text} s`);
}

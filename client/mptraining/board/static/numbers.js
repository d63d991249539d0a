// Curves and axes as numbers: smoothing, ranges, values at a cursor, scales with round ticks. No drawing here.

import { formatTick, formatValue } from "./format.js";

/**
 * Return `ys` smoothed as TensorBoard does: exponential moving average with `weight` in [0, 1), without the bias of its
 * beginning. `index` numbers the points among all that were recorded: a point counts for those that were left out
 * before it, so that a curve looks the same however many of its points are here.
 */
export function smoothed(ys, weight, index) {
  if (!weight) return ys;
  let [sum, total, last] = [0, 0, index[0] - 1];
  return ys.map((y, at) => {
    if (y === null) return null;
    const kept = weight ** (index[at] - last);
    last = index[at];
    sum = sum * kept + (1 - kept) * y;
    total = total * kept + (1 - kept);
    return sum / total;
  });
}

/** Return the points of the whole curve with those of a part of it, `detail`, in place of its own. */
export function merged(whole, detail) {
  if (!detail || !detail.x.length) return whole;
  const first = detail.index[0];
  const last = detail.index[detail.index.length - 1];
  const [before, after] = [lowerBound(whole.index, first), lowerBound(whole.index, last + 1)];
  const joined = (key) => [...whole[key].slice(0, before), ...detail[key], ...whole[key].slice(after)];
  return { ...whole, x: joined("x"), y: joined("y"), index: joined("index") };
}

/** Return the first index whose x is not below `value`; xs are sorted. */
function lowerBound(xs, value) {
  let [low, high] = [0, xs.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Return the index of the point nearest to `x` that has a value; -1 if there is none, or x is beyond the curve. */
export function nearestIndex(xs, ys, x) {
  if (!xs.length) return -1;
  const margin = (xs[xs.length - 1] - xs[0]) * 0.02;
  if (x < xs[0] - margin || x > xs[xs.length - 1] + margin) return -1;
  let index = Math.min(lowerBound(xs, x), xs.length - 1);
  if (index > 0 && x - xs[index - 1] < xs[index] - x) index -= 1;
  const candidates = [0, -1, 1, -2, 2, -3, 3].map((step) => index + step);
  return candidates.find((at) => ys[at] !== null && ys[at] !== undefined) ?? -1;
}

/**
 * Return the range of y to draw: {low, high, hidden, extreme}.
 *
 * With `cut`, values far from what most runs do are left outside: `hidden` counts them and `extreme` is the farthest.
 * The usual range is that of the run with the (lower) median of the runs' 95 % quantiles, so that one diverged run
 * among two does not decide.
 */
export function valueRange(curves, cut) {
  const all = curves.map((ys) => ys.filter((y) => y !== null)).filter((ys) => ys.length);
  if (!all.length) return { low: 0, high: 1, hidden: 0, extreme: null };
  const [low, high] = ends(all);
  if (!cut) return { low, high, hidden: 0, extreme: null };
  const quantile = (sorted, share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
  const usual = all
    .map((ys) => [...ys].sort((a, b) => a - b))
    .map((ys) => [quantile(ys, 0.05), quantile(ys, 0.95)])
    .sort((a, b) => a[1] - b[1])[Math.floor((all.length - 1) / 2)];
  const margin = 25 * Math.max(usual[1] - usual[0], Math.abs(usual[1]) * 0.04, 1e-12);
  const outside = (y) => y < usual[0] - margin || y > usual[1] + margin;
  const hidden = all.flatMap((ys) => ys.filter(outside));
  if (!hidden.length) return { low, high, hidden: 0, extreme: null };
  const extreme = hidden.reduce((most, y) => (Math.abs(y) > Math.abs(most) ? y : most), 0);
  const [shownLow, shownHigh] = ends(all.map((ys) => ys.filter((y) => !outside(y))));
  return { low: shownLow, high: shownHigh, hidden: hidden.length, extreme };
}

function ends(curves) {
  let [low, high] = [Infinity, -Infinity];
  for (const ys of curves) for (const y of ys) [low, high] = [Math.min(low, y), Math.max(high, y)];
  return [low, high];
}

/** Return the ends of a linear axis, a little beyond the values; 0 is an end if it is near. */
export function paddedRange(low, high) {
  if (low === high) return low === 0 ? [-0.05, 1] : [low - Math.abs(low) * 0.1, high + Math.abs(high) * 0.1];
  const margin = (high - low) * 0.06;
  const bottom = low >= 0 && low < (high - low) * 0.25 ? 0 : low - margin;
  return [bottom, high + margin];
}

/** Return {at, ticks, logarithmic} for numbers, drawn from `start` to `end` pixels. */
export function numberScale(values, start, end, kind = "number", most = 6) {
  let [low, high] = [Math.min(...values), Math.max(...values)];
  const logarithmic = low > 0 && kind !== "percent" && high / low >= 30;
  [low, high] = logarithmic ? [low / (high / low) ** 0.05, high * (high / low) ** 0.05] : paddedRange(low, high);
  const forward = logarithmic ? Math.log10 : (value) => value;
  const at = (value) => start + ((forward(value) - forward(low)) / (forward(high) - forward(low))) * (end - start);
  const ticksOf = logarithmic ? logarithmicTicks : kind === "seconds" ? timeTicks : linearTicks;
  const ticks = ticksOf(low, high, most).map((value) => ({ place: at(value), text: formatTick(value, kind) }));
  return { at, logarithmic, ticks };
}

/** Return {at, ticks} for texts, spread evenly in order of their names. */
export function textScale(values, start, end, kind = "text") {
  const names = [...new Set(values)].sort(inOrder);
  const at = (value) => start + ((names.indexOf(value) + 0.5) / names.length) * (end - start);
  const ticks = names.map((value) => ({ place: at(value), text: formatValue(value, kind) }));
  return { at, logarithmic: false, ticks };
}

/** Compare two values of a column: numbers by size, all others by their text. */
export function inOrder(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  // NaN is a text, and comes after the numbers.
  if (typeof a !== typeof b) return (typeof a === "string") - (typeof b === "string");
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

function linearTicks(low, high, most) {
  const raw = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(raw));
  return multiples(low, high, [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((step) => step >= raw * 0.999));
}

/** Return round times between two ends, in seconds. */
export function timeTicks(low, high, most) {
  const raw = (high - low) / most;
  const step = [1, 60, 3600].flatMap((unit) => [1, 2, 5, 10, 15, 30].map((factor) => factor * unit));
  const round = [...step, 43200, 86400].find((candidate) => candidate >= raw);
  return raw < 1 || !round ? linearTicks(low, high, most) : multiples(low, high, round);
}

function multiples(low, high, step) {
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.floor(high / step + 1e-9) - first + 1;
  return Array.from({ length: count }, (_, at) => Number(((first + at) * step).toPrecision(12)));
}

/** Return powers of ten between two ends, with 2 and 5 times them if there are few. */
export function logarithmicTicks(low, high, most) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const stride = Math.max(1, Math.ceil((last - first) / most));
  const ticks = [];
  for (let power = first; power <= last; power += stride) {
    for (const factor of last - first <= 3 ? [1, 2, 5] : [1]) ticks.push(Number((factor * 10 ** power).toPrecision(6)));
  }
  return ticks.filter((value) => value >= low && value <= high);
}

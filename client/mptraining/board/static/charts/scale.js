// A scale from values to pixels with round ticks, for the plots in SVG.

import { formatTick, formatValue } from "../format.js";

/** Return {at, ticks, logarithmic} for numbers, drawn from `start` to `end` pixels. */
export function numberScale(values, start, end, kind = "number", ticks = 6) {
  let [low, high] = [Math.min(...values), Math.max(...values)];
  const logarithmic = low > 0 && kind !== "percent" && high / low >= 30;
  if (low === high) [low, high] = low === 0 ? [-1, 1] : [low - Math.abs(low) * 0.1, high + Math.abs(high) * 0.1];
  else if (logarithmic) [low, high] = [low / (high / low) ** 0.05, high * (high / low) ** 0.05];
  else [low, high] = [low - (high - low) * 0.05, high + (high - low) * 0.05];
  const forward = logarithmic ? Math.log10 : (value) => value;
  const at = (value) => start + ((forward(value) - forward(low)) / (forward(high) - forward(low))) * (end - start);
  const places = logarithmic ? logarithmicTicks(low, high, ticks) : kind === "seconds" ? timeTicks(low, high, ticks) : linearTicks(low, high, ticks);
  return { at, logarithmic, ticks: places.map((value) => ({ value, place: at(value), text: formatTick(value, kind) })) };
}

/** Return {at, ticks} for texts, spread evenly in order of their names. */
export function textScale(values, start, end) {
  const distinct = [...new Set(values)].sort((one, other) => (typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other))));
  const names = distinct.map(String);
  const at = (value) => (names.length === 1 ? (start + end) / 2 : start + ((names.indexOf(String(value)) + 0.5) / names.length) * (end - start));
  return { at, logarithmic: false, ticks: names.map((value) => ({ value, place: at(value), text: formatValue(value) })) };
}

/** Return round numbers between two ends. */
export function linearTicks(low, high, most) {
  const raw = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= raw * 0.999);
  const count = Math.floor(high / step + 1e-9) - Math.ceil(low / step - 1e-9) + 1;
  return Array.from({ length: count }, (_, at) => Number(((Math.ceil(low / step - 1e-9) + at) * step).toPrecision(12)));
}

/** Return round times between two ends: multiples of 1, 2, 5, 10, 15 and 30 seconds, minutes or hours, and of days. */
export function timeTicks(low, high, most) {
  const raw = (high - low) / most;
  const unit = raw <= 30 ? 1 : raw <= 1800 ? 60 : raw <= 43200 ? 3600 : 86400;
  if (raw < 1) return linearTicks(low, high, most);
  const step = [1, 2, 5, 10, 15, 30].map((each) => each * unit).find((each) => each >= raw) ?? linearTicks(low, high, most)[1] - linearTicks(low, high, most)[0];
  const ticks = [];
  for (let each = Math.ceil(low / step) * step; each <= high; each += step) ticks.push(each);
  return ticks;
}

/** Return powers of ten between two ends, with 2 and 5 times them if there are few. */
export function logarithmicTicks(low, high, most) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const stride = Math.max(1, Math.ceil((last - first) / most));
  const factors = last - first <= 3 ? [1, 2, 5] : [1];
  const all = [];
  for (let power = first; power <= last; power += stride) for (const each of factors) all.push(Number((each * 10 ** power).toPrecision(6)));
  return all.filter((each) => each >= low && each <= high);
}

// Values as people read them, and the colours of runs and scales.

const DASH = "–";

/** Return a number with about four significant digits: 0.04213, 1,234, 3.1e-7. */
export function formatNumber(value, digits = 4) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e9)) {
    return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  }
  if (Number.isInteger(value) || size >= 10 ** digits) return Math.round(value).toLocaleString("en");
  return size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(digits)));
}

/** Return a duration: 3.2 ms, 42.1 s, 3 min 5 s, 2 h 4 min, 3 d 4 h. */
export function formatSeconds(value) {
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  if (size < 1e-3) return `${formatNumber(value * 1e6, 3)} µs`;
  if (size < 1) return `${formatNumber(value * 1e3, 3)} ms`;
  if (size < 60) return `${formatNumber(value, 3)} s`;
  const whole = Math.round(value);
  const parts = [whole / 86400, (whole / 3600) % 24, (whole / 60) % 60, whole % 60];
  const [days, hours, minutes, seconds] = parts.map(Math.floor);
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return seconds ? `${minutes} min ${seconds} s` : `${minutes} min`;
}

/** Return a size in decimal units: 1.2 GB. */
export function formatBytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  const power = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log10(Math.abs(value) || 1) / 3)));
  return `${formatNumber(value / 1000 ** power, 3)} ${units[power]}`;
}

/** Return a moment in the reader's time zone; the date only if it is not today. */
export function formatTime(value) {
  const moment = new Date(value * 1000);
  const clock = moment.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  if (moment.toDateString() === new Date().toDateString()) return clock;
  return `${moment.toLocaleDateString("en-CA")} ${clock.slice(0, 5)}`;
}

/** Return a table's value by its column's kind. */
export function formatValue(value, kind = "text") {
  if (value === null || value === undefined || value === "") return DASH;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (kind === "seconds") return formatSeconds(value);
  if (kind === "bytes") return formatBytes(value);
  if (kind === "bytes/s") return `${formatBytes(value)}/s`;
  if (kind === "percent") return `${formatNumber(value, Math.abs(value) < 1 ? 1 : 3)}%`;
  if (kind === "time") return formatTime(value);
  if (typeof value !== "number") return String(value);
  // A unit such as W, °C or examples/s.
  return kind === "number" || kind === "text" || !kind ? formatNumber(value) : `${formatNumber(value, 3)} ${kind}`;
}

/** Return the value at an axis' tick: short, without the unit of plain numbers. */
export function formatTick(value, kind) {
  if (value === null) return "";
  const shown = formatValue(value, ["seconds", "bytes", "bytes/s", "percent"].includes(kind) ? kind : "number");
  return kind === "seconds" ? shown.replace(" min", "m").replace(/ (h|s|ms|µs|d)/g, "$1") : shown;
}

/** Return x as text: a step, an epoch, a trial, or a time. */
export function formatX(value, kind) {
  if (kind === "seconds") return formatSeconds(value);
  return `${kind} ${kind === "epoch" ? formatNumber(value, 3) : formatNumber(Math.round(value), 9)}`;
}

// Twelve colours that are told apart with colour-blindness as well; further runs have evenly turned hues.
const LIGHT =
  "#1f6fd6 #d1570a #14805e #b23a86 #8a6a00 #6a4bc4 #c22f3d #0e8496 #5f6b1a #96501f #3c4b8c #6b6b6b".split(" ");
const DARK =
  "#5aa2ff #ff9a52 #3ecf9e #f08ac4 #e2bd45 #ab93ff #ff7d86 #4cc9dc #b7c75a #e0a172 #93a5f0 #b5b5b5".split(" ");
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];

/** Return whether the page is dark now: by the user's choice, or else by the system's. */
export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Return the colour of the run with this index, a different one among 200. */
export function runColour(index, dark = isDark()) {
  if (index < LIGHT.length) return (dark ? DARK : LIGHT)[index];
  // The golden angle keeps successive hues far apart; lightness tells the rounds of it apart.
  const turn = index - LIGHT.length;
  const hue = (25 + turn * 137.508) % 360;
  const lightness = (dark ? [72, 82, 62] : [46, 36, 54])[turn % 3];
  return `hsl(${hue.toFixed(1)} ${dark ? 75 : 65}% ${lightness}%)`;
}

/** Return the dashes of a run's curve: solid for the first dozen, so that colour is not the only difference. */
export function runDash(index) {
  return DASHES[Math.floor(index / LIGHT.length) % DASHES.length];
}

/** Return the colour between two ends for `share` from 0 to 1: violet over teal to yellow (viridis). */
export function scaleColour(share, dark = isDark()) {
  const stops = dark
    ? [[120, 90, 190], [80, 140, 200], [60, 190, 160], [150, 215, 90], [250, 230, 60]]
    : [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 170, 60], [190, 160, 0]];
  const place = Math.min(0.9999, Math.max(0, share)) * (stops.length - 1);
  const [low, high, part] = [stops[Math.floor(place)], stops[Math.floor(place) + 1], place % 1];
  return `rgb(${low.map((from, at) => Math.round(from + (high[at] - from) * part)).join(" ")})`;
}

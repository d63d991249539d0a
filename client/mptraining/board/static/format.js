// Values as people read them.

const DASH = "–";

/** Return a number with about four significant digits: 0.04213, 1,234, 3.1e-7. */
export function formatNumber(value, digits = 4) {
  if (value === null || value === undefined) return DASH;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e9)) return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  if (Number.isInteger(value) || size >= 10 ** digits) return Math.round(value).toLocaleString("en");
  return size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(digits)));
}

/** Return a duration: 3.2 ms, 42.1 s, 3 min 5 s, 2 h 4 min, 3 d 4 h. */
export function formatSeconds(value) {
  if (value === null || value === undefined) return DASH;
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  if (size < 1e-3) return `${formatNumber(value * 1e6, 3)} µs`;
  if (size < 1) return `${formatNumber(value * 1e3, 3)} ms`;
  if (size < 60) return `${formatNumber(value, 3)} s`;
  const whole = Math.round(value);
  const [days, hours, minutes, seconds] = [whole / 86400, (whole / 3600) % 24, (whole / 60) % 60, whole % 60].map(Math.floor);
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return seconds ? `${minutes} min ${seconds} s` : `${minutes} min`;
}

/** Return a size in decimal units: 1.2 GB. */
export function formatBytes(value) {
  if (value === null || value === undefined) return DASH;
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  const power = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log10(Math.abs(value) || 1) / 3)));
  return `${formatNumber(value / 1000 ** power, 3)} ${units[power]}`;
}

/** Return a moment in the reader's time zone; the date only if it is not today. */
export function formatTime(value, now = Date.now()) {
  if (value === null || value === undefined) return DASH;
  const moment = new Date(value * 1000);
  const clock = moment.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  if (moment.toDateString() === new Date(now).toDateString()) return clock;
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

/** Return the name of a metric or column for people: val_accuracy -> validation accuracy, gpuPower -> gpu power. */
export function readable(name) {
  const words = name.replace(/^val_/, "validation ").replace(/_/g, " ").replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase();
  const bare = words.replace(/ (bytes per second|bytes|percent|seconds|watts|celsius)$/, "");
  return bare.replace(/\b(gpu|cpu|ram|xla)\b/g, (each) => each.toUpperCase());
}

/** Return the value at an axis' tick: short, without trailing zeros. */
export function formatTick(value, kind) {
  if (value === null) return "";
  if (kind === "seconds") return formatSeconds(value).replace(" min", "m").replace(/ (h|s|ms|µs|d)/g, "$1");
  if (kind === "bytes") return formatBytes(value);
  if (kind === "bytes/s") return `${formatBytes(value)}/s`;
  if (kind === "percent") return `${formatNumber(value, 3)}%`;
  const size = Math.abs(value);
  if (size >= 1e4 && size < 1e6) return `${formatNumber(value / 1e3, 4)}k`;
  if (size >= 1e6 && size < 1e9) return `${formatNumber(value / 1e6, 4)}M`;
  return formatNumber(value, 4);
}

/** Return x as text: a step, an epoch, or a time. */
export function formatX(value, xKind) {
  if (xKind === "seconds") return formatSeconds(value);
  return xKind === "step" ? `step ${formatNumber(Math.round(value), 9)}` : `epoch ${formatNumber(value, 3)}`;
}

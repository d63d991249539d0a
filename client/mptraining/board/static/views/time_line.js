// Attempts on one line of time: what each did, what was trained again, and the share of the time that counted.

import { h } from "../dom.js";
import { formatSeconds, formatTime, formatValue } from "../format.js";

/** Return the time line of attempts [{number, start, end, outcome, message, firstStep, lastStep, lostSeconds}]. */
export function timeLine(attempts, goodput) {
  const start = Math.min(...attempts.map((each) => each.start));
  const end = Math.max(...attempts.map((each) => each.end ?? each.start), start + 1);
  const share = (time) => (100 * (time - start)) / (end - start);
  const lost = attempts.reduce((sum, each) => sum + (each.lostSeconds ?? 0), 0);
  const summary = [
    attempts.length === 1 ? "1 attempt" : `${attempts.length} attempts`,
    `${formatSeconds(end - start)} from ${formatTime(start)}`,
    lost ? `${formatSeconds(lost)} lost to interruptions` : null,
    goodput !== null && goodput !== undefined ? `goodput ${formatValue(goodput * 100, "percent")}` : null,
  ].filter(Boolean);
  return h(
    "section",
    { class: "time-line", "aria-label": "Attempts" },
    h("p", {}, summary.join(" · ")),
    attempts.length > 1 || lost ? h("div", { class: "bars" }, attempts.map((each) => bar(each, share, end))) : "",
    attempts.length > 1 ? h("ol", {}, attempts.map(line)) : "",
  );
}

function bar(attempt, share, end) {
  const [from, to] = [share(attempt.start), share(attempt.end ?? end)];
  const wall = (attempt.end ?? end) - attempt.start;
  const lost = wall > 0 ? Math.min(100, (100 * (attempt.lostSeconds ?? 0)) / wall) : 0;
  const text = words(attempt);
  return h(
    "div",
    { class: `bar-of ${(attempt.outcome ?? "running").toLowerCase()}`, title: text, role: "img", "aria-label": text, style: { left: `${from}%`, width: `max(4px, ${to - from}%)` } },
    lost ? h("span", { class: "lost", style: { width: `${lost}%` } }) : "",
    h("span", { class: "bar-number" }, attempt.number),
  );
}

function line(attempt) {
  return h("li", { value: attempt.number }, words(attempt));
}

function words({ start, end, outcome, message, firstStep, lastStep, lostSeconds }) {
  const steps = lastStep !== null && lastStep !== undefined ? `steps ${(firstStep ?? 0).toLocaleString("en")} to ${lastStep.toLocaleString("en")}` : null;
  const parts = [outcome ?? "running", steps, end ? formatSeconds(end - start) : null, lostSeconds ? `${formatSeconds(lostSeconds)} lost` : null, message];
  return parts.filter(Boolean).join(" · ");
}

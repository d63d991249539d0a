// Sections of a run's page: decisions, checkpoints, events, quarantined records, configuration, commands.

import { copyButton, h } from "../dom.js";
import { formatBytes, formatSeconds, formatTime, formatValue } from "../format.js";

const MOST_TABLE_ROWS = 200;

/** Return the choices that were made for the run, each with its reason. */
export function decisions({ decisions: made = [] }) {
  if (!made.length) return null;
  const row = ({ what, value, reason }) => h("div", {}, h("dt", {}, what, " ", h("b", {}, formatValue(value))), h("dd", {}, reason ?? ""));
  return section("decisions", "Decisions", made.length, h("dl", { class: "decisions" }, made.map(row)), true);
}

/** Return the checkpoints, the newest first. */
export function checkpoints({ checkpoints: saved = [] }) {
  if (!saved.length) return null;
  const row = (each) => [each.step.toLocaleString("en"), formatTime(each.time), formatBytes(each.bytes), formatSeconds(each.seconds), h("code", {}, each.uri)];
  return section("checkpoints", "Checkpoints", saved.length, table(["step", "time", "size", "took", "where"], saved.toReversed().map(row), [0, 2, 3]));
}

/** Return the events, the newest first; warnings stand out. */
export function events({ events: seen = [] }) {
  if (!seen.length) return null;
  const warning = (each) => each.level === "Warning";
  const row = (each) => [formatTime(each.time), each.topic ?? each.kind, each.message ?? "", each.attempt, each.worker];
  const newest = seen.toReversed();
  return section("events", "Events", seen.length, table(["time", "what", "message", "attempt", "worker"], newest.map(row), [], newest.map((each) => (warning(each) ? "warned" : null))), seen.some(warning));
}

/** Return the records that were skipped. */
export function quarantine({ quarantine: records = [] }) {
  if (!records.length) return null;
  return section("quarantine", "Quarantined records", records.length, table(["file", "record", "reason"], records.map((each) => [h("code", {}, each.file), each.record, each.reason]), [1]), true);
}

/** Return every field of the resolved job. */
export function configuration({ configuration: fields = {} }) {
  const paths = Object.keys(fields).sort();
  if (!paths.length) return null;
  return section("configuration", "Configuration", paths.length, table(["field", "value"], paths.map((path) => [h("code", {}, path), formatValue(fields[path])]), []));
}

/** Return the commands for this run or job, to copy. */
export function commands(known = []) {
  if (!known.length) return null;
  const row = ({ title, command }) => h("li", {}, h("span", {}, title), h("span", { class: "command" }, h("code", {}, command), copyButton(command)));
  return section("commands", "Commands", 0, h("ul", { class: "commands" }, known.map(row)), true);
}

function section(id, title, count, content, open = false) {
  return h("details", { id, class: "part", open }, h("summary", {}, h("h2", {}, title), count ? h("span", { class: "count" }, count) : ""), content);
}

/** Return a table; `numbers` are the indices of right-aligned columns, `classes` those of its rows. */
export function table(heads, rows, numbers = [], classes = []) {
  const kind = (at) => (numbers.includes(at) ? "number" : "");
  const body = (shown) => rows.slice(0, shown).map((cells, index) => h("tr", { class: classes[index] ?? null }, cells.map((each, at) => h("td", { class: kind(at) }, each ?? "–"))));
  const filled = h("tbody", {}, body(MOST_TABLE_ROWS));
  const more = h("button", { type: "button", class: "more", onclick: () => (filled.replaceChildren(...body(Infinity)), more.remove()) }, `Show ${rows.length - MOST_TABLE_ROWS} more`);
  return h(
    "div",
    { class: "table-frame" },
    h("table", {}, h("thead", {}, h("tr", {}, heads.map((each, at) => h("th", { scope: "col", class: kind(at) }, each)))), filled),
    rows.length > MOST_TABLE_ROWS ? more : "",
  );
}

// What differs between runs: the configuration, and the speed of runs that differ in one choice alone.

import { h } from "../dom.js";
import { formatNumber, formatSeconds, formatValue } from "../format.js";
import { apiPath, load } from "../load.js";
import { runLink } from "./run_row.js";

// A difference of 3 % is within what the same job shows when it runs twice.
const NOISE = 0.03;
const TWIN_SETTINGS = ["model", "program", "accelerator", "replicas", "globalBatchSize", "optimizer", "keras", "policy", "jitCompile"];

/** Return the element with the configuration values in which the runs differ; it fills itself. */
export function differencesTable(runs) {
  const element = h("section", { class: "differences" }, h("p", { class: "loading" }, "Loading the configurations…"));
  fill(element, runs).catch((error) => element.replaceChildren(h("p", { class: "warning" }, error.message)));
  return element;
}

async function fill(element, runs) {
  const details = await Promise.all(runs.map((each) => load(apiPath("run", each.id))));
  const configurations = details.map((each) => each.configuration ?? {});
  const paths = differingPaths(configurations);
  if (runs.length < 2) return element.replaceChildren(h("p", { class: "empty" }, "Differences need two runs or more."));
  if (!paths.length) return element.replaceChildren(h("p", { class: "empty" }, "These runs have the same configuration."));
  const cell = (value) => h("td", { class: value === undefined ? "absent" : "" }, value === undefined ? "–" : formatValue(value));
  const name = (run) => h("th", { scope: "row", class: "name" }, h("i", { class: "swatch", style: { "--c": run.colour } }), h("a", { href: runLink(run) }, run.label));
  // Up to four runs stand side by side, as in a diff; more become rows.
  const rows =
    runs.length <= 4
      ? paths.map((path) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, path)), configurations.map((each) => cell(each[path]))))
      : runs.map((run, at) => h("tr", {}, name(run), paths.map((path) => cell(configurations[at][path]))));
  const head = runs.length <= 4 ? h("tr", {}, h("th", {}, "field"), runs.map(name)) : h("tr", {}, h("th", {}, "run"), paths.map((path) => h("th", { scope: "col" }, h("code", {}, path))));
  const same = new Set(configurations.flatMap(Object.keys)).size - paths.length;
  return element.replaceChildren(
    h("div", { class: "table-frame" }, h("table", {}, h("thead", {}, head), h("tbody", {}, rows))),
    h("p", { class: "chart-note" }, `${same} other ${same === 1 ? "field is" : "fields are"} the same in all.`),
  );
}

/** Return the paths whose values are not the same in all configurations, in order. */
export function differingPaths(configurations) {
  // The name differs in every run, and heads its row.
  const paths = [...new Set(configurations.flatMap(Object.keys))].filter((each) => each !== "name").sort();
  return paths.filter((path) => new Set(configurations.map((each) => JSON.stringify(each[path] ?? null))).size > 1);
}

/** Return pairs of runs that differ in `key` alone, of all settings: [{run, twin, ratio}]; the twin has value `base`. */
export function twins(runs, key, isBase) {
  const same = (one, other) => TWIN_SETTINGS.every((each) => each === key || (one.values[each] ?? null) === (other.values[each] ?? null));
  const pairs = [];
  for (const run of runs.filter((each) => each.values[key] !== undefined && !isBase(each.values[key]) && each.values.examplesPerSecond)) {
    const twin = runs.find((each) => each.values[key] !== undefined && isBase(each.values[key]) && each.values.examplesPerSecond && same(run, each));
    if (twin) pairs.push({ run, twin, ratio: run.values.examplesPerSecond / twin.values.examplesPerSecond });
  }
  return pairs;
}

/** Return the speed of every run, and against its twins: the same in float32, the same without XLA. */
export function speedTable(runs) {
  const precision = twins(runs, "policy", (value) => value === "float32");
  const compiled = twins(runs, "jitCompile", (value) => value === false || /^(false|no|never|off)$/i.test(String(value)));
  return h(
    "section",
    { class: "speed" },
    h("h2", {}, "Against the same run in float32"),
    precision.length ? pairsTable(precision, "float32 twin") : h("p", { class: "empty" }, "No two of these runs differ in the precision policy alone. Train the job once more with policy: float32 and compare both."),
    compiled.length ? [h("h2", {}, "With XLA against without"), pairsTable(compiled, "twin without XLA")] : "",
    h("h2", {}, "All"),
    barsTable(runs),
  );
}

function pairsTable(pairs, title) {
  const row = ({ run, twin, ratio }) =>
    h(
      "tr",
      {},
      h("th", { scope: "row", class: "name" }, h("i", { class: "swatch", style: { "--c": run.colour } }), h("a", { href: runLink(run) }, run.label)),
      h("td", {}, formatValue(run.values.policy)),
      h("td", {}, h("a", { href: runLink(twin) }, twin.label)),
      h("td", { class: `number ${Math.abs(ratio - 1) <= NOISE ? "" : ratio > 1 ? "better" : "worse"}` }, `${ratio.toFixed(2)}×`),
      h("td", {}, judgement(ratio)),
      h("td", { class: "number" }, memory(run, twin)),
    );
  const heads = ["run", "policy", title, "speed", "", "peak memory"].map((each) => h("th", { scope: "col" }, each));
  return h("div", { class: "table-frame" }, h("table", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, pairs.map(row))));
}

function judgement(ratio) {
  if (Math.abs(ratio - 1) <= NOISE) return "no difference beyond noise";
  return ratio > 1 ? `${Math.round((ratio - 1) * 100)}% faster` : `${Math.round((1 - ratio) * 100)}% slower`;
}

function memory(run, twin) {
  const [one, other] = [run.values.peakMemoryBytes, twin.values.peakMemoryBytes];
  return one && other ? `${(one / other).toFixed(2)}×` : "–";
}

function barsTable(runs) {
  const measured = runs.filter((each) => each.values.examplesPerSecond).sort((one, other) => other.values.examplesPerSecond - one.values.examplesPerSecond);
  const most = measured[0]?.values.examplesPerSecond ?? 1;
  const row = (run) =>
    h(
      "tr",
      {},
      h("th", { scope: "row", class: "name" }, h("i", { class: "swatch", style: { "--c": run.colour } }), h("a", { href: runLink(run) }, run.label)),
      h("td", { class: "bar-cell" }, h("span", { class: "bar", style: { "--share": `${(100 * run.values.examplesPerSecond) / most}%`, "--c": run.colour } })),
      h("td", { class: "number" }, formatNumber(run.values.examplesPerSecond, 3)),
      h("td", { class: "number" }, formatSeconds(run.values.stepSeconds)),
      h("td", { class: "number" }, formatSeconds(run.values.totalSeconds)),
    );
  const heads = ["run", "", "examples/s", "time a step", "total time"].map((each) => h("th", { scope: "col" }, each));
  if (!measured.length) return h("p", { class: "empty" }, "No speed has been reported yet.");
  return h("div", { class: "table-frame" }, h("table", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, measured.map(row))));
}

// The view of one sweep: how it stands, its best trial, and the plots and the table of its trials.

import { parallelSection } from "../charts/parallel_plot.js";
import { bestCurve, scatterMatrix } from "../charts/sweep_plots.js";
import { h, throttled } from "../dom.js";
import { formatSeconds, formatValue } from "../format.js";
import { apiPath, load } from "../load.js";
import { onChange } from "../live.js";
import { sortRuns } from "../runs_table.js";
import { runLink } from "./run_row.js";
import { commands } from "./run_sections.js";

export class SweepView {
  constructor(id) {
    this.id = id;
    this.title = id;
    this.sort = { key: "", descending: false };
    this.refresh = throttled(() => this.reload(), 300);
  }

  async open(root) {
    this.root = root;
    await this.reload();
    this.stop = onChange((changed) => (changed === null || changed.includes(this.id)) && this.refresh());
  }

  close() {
    this.stop?.();
  }

  async reload() {
    this.data = await load(apiPath("sweep", this.id));
    this.title = this.data.sweep.name;
    this.sort.key ||= this.data.objective.key;
    if (this.sort.descending === false && this.sort.key === this.data.objective.key && !this.chosen) this.sort.descending = this.data.objective.better === "higher";
    // What the reader is using is not replaced under the pointer.
    if (!this.root.contains(document.activeElement)) this.draw();
  }

  redraw() {
    if (this.data) this.draw();
  }

  draw() {
    const { sweep, columns, objective, trials } = this.data;
    const runs = trials.map((each) => ({ ...each, label: each.name, link: each.run ? `#/run/${encodeURIComponent(each.run)}` : `#/sweep/${encodeURIComponent(this.id)}` }));
    const parameters = columns.filter((each) => each.parameter);
    const ended = runs.filter((each) => typeof each.values[objective.key] === "number");
    const part = (title, content, note = "") => h("section", { class: "part" }, h("h2", {}, title), note ? h("p", { class: "chart-note" }, note) : "", content);
    this.root.replaceChildren(
      h("div", { class: "run-title" }, h("h1", {}, sweep.name), h("span", { class: `badge ${sweep.state.toLowerCase()}` }, sweep.phase)),
      h("p", { class: "where" }, sweep.folder ? h("code", {}, sweep.folder) : `namespace ${sweep.namespace}`),
      sweep.message ? h("p", { class: `reason ${sweep.state === "Failed" ? "failed" : ""}` }, sweep.message) : "",
      this.facts(sweep, objective, parameters),
      part("Best so far", bestCurve(runs, objective)),
      part("Parallel coordinates", ended.length > 1 ? parallelSection(ended, [...parameters, objective], objective) : h("p", { class: "empty" }, "They need two ended trials."), `Coloured by ${objective.title}: violet is low, yellow is high.`),
      part("Scatter matrix", scatterMatrix(runs, parameters, objective)),
      this.importance() ?? "",
      part("Trials", this.table(runs, columns, objective)),
      commands(sweep.commands) ?? "",
    );
  }

  facts(sweep, objective, parameters) {
    const fact = (title, value) => (value === "" || value === null || value === undefined ? "" : h("div", {}, h("dt", {}, title), h("dd", {}, value)));
    const { counts, best } = sweep;
    const open = [counts.running ? `${counts.running} running` : "", counts.failed ? `${counts.failed} failed` : "", counts.stopped ? `${counts.stopped} stopped early` : ""].filter(Boolean).join(", ");
    return h(
      "dl",
      { class: "facts" },
      fact(`best ${objective.title}`, best ? formatValue(best.objective, "number") : "none yet"),
      best ? parameters.map((each) => fact(each.title, best.values[each.key] === undefined ? "" : formatValue(best.values[each.key], "number"))) : "",
      fact("trials", `${counts.ended} of ${sweep.max}${open ? ` (${open})` : ""}`),
      fact("algorithm", sweep.algorithm),
      fact("time", sweep.seconds === null ? "" : formatSeconds(sweep.seconds)),
    );
  }

  importance() {
    const found = this.data.importance;
    if (!found?.length) return null;
    const row = ({ title, share }) => h("tr", {}, h("th", { scope: "row" }, title), h("td", { class: "number" }, formatValue(100 * share, "percent")), h("td", { class: "bar-cell" }, h("span", { class: "bar", style: { "--share": `${100 * share}%`, "--c": "var(--accent)" } })));
    return h("section", { class: "part" }, h("h2", {}, "Importance"), h("p", { class: "chart-note" }, "How much each parameter decides whether a trial is among the best (Optuna, PED-ANOVA)."), h("div", { class: "table-frame" }, h("table", {}, h("tbody", {}, found.map(row)))));
  }

  table(trials, columns, objective) {
    if (!trials.length) return h("p", { class: "empty" }, "No trial yet.");
    const sorted = this.sort.key === "number" ? [...trials].sort((one, other) => (this.sort.descending ? other.number - one.number : one.number - other.number)) : sortRuns(trials, this.sort);
    const best = this.data.sweep.best?.number;
    const head = (key, title, number) => {
      const active = this.sort.key === key;
      const arrow = active ? (this.sort.descending ? " ↓" : " ↑") : "";
      return h("th", { scope: "col", class: number ? "number" : "", "aria-sort": active ? (this.sort.descending ? "descending" : "ascending") : null }, h("button", { type: "button", onclick: () => this.sortBy(key) }, title, h("span", { "aria-hidden": "true" }, arrow)));
    };
    const row = (trial) =>
      h(
        "tr",
        { "data-trial": trial.number },
        h("th", { scope: "row", class: "name" }, trial.run ? h("a", { href: runLink(trial) }, trial.name) : trial.name),
        h("td", { class: "state" }, h("span", { class: `badge ${trial.state.toLowerCase()}`, title: trial.message ?? null }, trial.shownState)),
        [objective, ...columns.filter((each) => each.key !== objective.key)].map((column) => h("td", { class: `${typeof trial.values[column.key] === "string" ? "" : "number"} ${column.key === objective.key && trial.number === best ? "best" : ""}` }, formatValue(trial.values[column.key], column.kind))),
      );
    const heads = [head("number", "trial"), head("state", "state"), [objective, ...columns.filter((each) => each.key !== objective.key)].map((each) => head(each.key, each.title, true))];
    return h("div", { class: "table-frame" }, h("table", { class: "trials" }, h("caption", { class: "visually-hidden" }, "Trials"), h("thead", {}, h("tr", {}, heads)), h("tbody", {}, sorted.map(row))));
  }

  sortBy(key) {
    this.chosen = true;
    this.sort = { key, descending: this.sort.key === key ? !this.sort.descending : key === this.data.objective.key && this.data.objective.better === "higher" };
    this.draw();
  }
}

// The view that compares runs: curves, scatter, parallel coordinates, speed, and what differs in the configuration.

import { chartSections } from "../charts/chart_list.js";
import { ChartPanel } from "../charts/chart_panel.js";
import { parallelPlot } from "../charts/parallel_plot.js";
import { scatterPlot } from "../charts/scatter_plot.js";
import { runColour, runDash } from "../colours.js";
import { emptyState, h, throttled } from "../dom.js";
import { formatValue, readable } from "../format.js";
import { load } from "../load.js";
import { onChange } from "../live.js";
import { chartControls, chartSettings, choice } from "./controls.js";
import { differencesTable, speedTable } from "./differences.js";
import { runLink, stateBadge } from "./run_row.js";

const MOST_COMPARED = 200;
const TABS = [["curves", "Curves"], ["scatter", "Scatter"], ["parallel", "Parallel coordinates"], ["speed", "Speed"], ["differences", "Differences"]];

export class CompareView {
  constructor(parameters) {
    this.wanted = (parameters.get("runs") ?? "").split(",").filter(Boolean).map(decodeURIComponent);
    this.tab = TABS.some(([key]) => key === parameters.get("tab")) ? parameters.get("tab") : "curves";
    this.axes = { x: parameters.get("x"), y: parameters.get("y") };
    this.off = new Set();
    this.title = "Compare";
    this.refresh = throttled(() => this.changed(), 300);
    this.touched = false;
  }

  async open(root) {
    this.root = root;
    await this.read();
    if (!this.runs.length) {
      const advice = this.data.runs.length ? "Select runs in the table, then press Compare." : "There are no runs yet.";
      return root.replaceChildren(emptyState("Nothing to compare", advice, h("a", { href: "#/runs" }, "All runs")));
    }
    this.legend = h("aside", { class: "legend", "aria-label": "Runs in the comparison" });
    this.content = h("div", { class: "compare-content" });
    this.tabs = choice("Show", TABS, this.tab, (tab) => this.setTab(tab));
    this.tabs.classList.add("tabs");
    root.replaceChildren(h("div", { class: "compare-head" }, h("h1", {}, `Compare ${this.runs.length === 1 ? "1 run" : `${this.runs.length} runs`}`), this.tabs), h("div", { class: "compare" }, this.legend, this.content));
    this.stop = onChange((changed) => {
      this.touched ||= changed === null || this.runs.some((each) => changed.includes(each.id));
      this.refresh();
    });
    this.draw();
    return undefined;
  }

  close() {
    this.stop?.();
    this.panel?.destroy();
  }

  async read() {
    this.data = await load("/api/runs");
    const chosen = this.wanted.length ? this.data.runs.filter((each) => this.wanted.includes(each.id)) : this.data.runs;
    this.runs = chosen.slice(0, MOST_COMPARED);
    this.cutOff = chosen.length - this.runs.length;
  }

  async changed() {
    const { touched } = this;
    this.touched = false;
    await this.read();
    this.drawLegend();
    if (this.tab === "curves") {
      if (touched) this.panel?.refresh();
    } else if (!this.content.contains(document.activeElement)) this.drawTab();
  }

  setTab(tab) {
    this.tab = tab;
    const parameters = new URLSearchParams(location.hash.split("?")[1] ?? "");
    parameters.set("tab", tab);
    // The address can be shared, without a step in the history for each tab.
    history.replaceState(null, "", `#/compare?${parameters.toString().replaceAll("%2C", ",")}`);
    this.drawTab();
  }

  setAxes(axes) {
    Object.assign(this.axes, axes);
    const parameters = new URLSearchParams(location.hash.split("?")[1] ?? "");
    for (const [name, value] of Object.entries(axes)) parameters.set(name, value);
    history.replaceState(null, "", `#/compare?${parameters.toString().replaceAll("%2C", ",")}`);
    this.drawTab();
  }

  /** Return the runs with colours; those switched off are not in it. */
  styled() {
    return this.runs
      .map((run, index) => ({ ...run, label: run.name, colour: runColour(index), dash: runDash(index) }))
      .filter((each) => !this.off.has(each.id));
  }

  draw() {
    this.drawLegend();
    this.drawTab();
  }

  drawLegend() {
    const key = ["last:val_loss", "last:loss"].find((each) => this.data.columns.some((column) => column.key === each));
    const rows = this.runs.map((run, index) => {
      const toggle = (event) => this.toggle(run.id, event.target.checked);
      return h(
        "li",
        { "data-legend": run.id, onpointerenter: () => this.panel?.group.highlight(run.id), onpointerleave: () => this.panel?.group.highlight(null) },
        h("label", {}, h("input", { type: "checkbox", checked: !this.off.has(run.id), onchange: toggle, "aria-label": `Draw ${run.name}` }), h("i", { class: `swatch ${runDash(index).length ? "dashed" : ""}`, style: { "--c": runColour(index) } })),
        h("a", { href: runLink(run), title: run.folder ?? run.name }, run.name),
        run.state === "Succeeded" ? "" : stateBadge(run),
        key ? h("b", {}, formatValue(run.values[key], "number")) : "",
      );
    });
    const all = h("button", { type: "button", class: "quiet", onclick: () => this.toggleAll() }, this.off.size ? "Draw all" : "Draw none");
    const cutOff = this.cutOff > 0 ? h("p", { class: "chart-note" }, `The first ${MOST_COMPARED} of ${MOST_COMPARED + this.cutOff} runs; select fewer in the table.`) : "";
    const place = this.legend.querySelector("ul")?.scrollTop ?? 0;
    const focused = this.legend.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
    this.legend.replaceChildren(h("div", { class: "legend-head" }, h("span", {}, key ? readable(key.replace(":", " ").replace("val_", "validation ")) : ""), all), h("ul", {}, rows), cutOff);
    this.legend.querySelector("ul").scrollTop = place;
    if (focused) this.legend.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
  }

  toggle(id, drawn) {
    this.off[drawn ? "delete" : "add"](id);
    this.restyle();
  }

  toggleAll() {
    if (this.off.size) this.off.clear();
    else for (const each of this.runs) this.off.add(each.id);
    this.restyle();
  }

  restyle() {
    this.drawLegend();
    if (this.tab === "curves") this.panel.setRuns(this.styled());
    else this.drawTab();
  }

  redraw() {
    this.drawLegend();
    if (this.tab === "curves") this.panel?.setRuns(this.styled());
    else this.drawTab();
  }

  drawTab() {
    this.panel?.destroy();
    this.panel = null;
    const runs = this.styled();
    const choose = (axes) => this.setAxes(axes);
    if (this.tab === "curves") this.drawCurves(runs);
    else if (this.tab === "scatter") this.content.replaceChildren(scatterPlot(runs, this.data.columns, this.axes, choose));
    else if (this.tab === "parallel") this.content.replaceChildren(parallelPlot(runs, this.data.columns, this.axes, choose));
    else if (this.tab === "speed") this.content.replaceChildren(speedTable(runs, this.data.columns));
    else this.content.replaceChildren(differencesTable(runs));
  }

  drawCurves(runs) {
    const sections = chartSections(this.data.series ?? {}, this.runs.length);
    this.panel = new ChartPanel(sections, chartSettings());
    this.content.replaceChildren(
      chartControls((changed) => this.panel.set(changed), this.panel),
      sections[0]?.charts.some((each) => each.names.length > 1) ? h("p", { class: "chart-note" }, "Solid: training. Dashed: validation.") : "",
      this.panel.element,
    );
    this.panel.setRuns(runs);
  }
}

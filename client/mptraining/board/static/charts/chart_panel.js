// A grid of charts of some runs; each chart loads its points when it comes into view, and again after a change.

import { runColour } from "../colours.js";
import { debounced, h } from "../dom.js";
import { readable } from "../format.js";
import { load } from "../load.js";
import { ChartGroup } from "./chart_group.js";
import { CurveChart } from "./curve_chart.js";
import { changes, smoothed } from "./points.js";

/** Sections of charts: [{title, charts: [{title, names: [series, …]}]}]. `runs`: [{id, label, colour, dash}]. */
export class ChartPanel {
  constructor(sections, options) {
    this.options = { x: "step", smooth: 0, scale: "auto", cut: true, ...options };
    this.runs = [];
    this.group = new ChartGroup((range) => this.zoomed(range));
    this.reset = h("button", { type: "button", hidden: true, onclick: () => this.group.zoomTo(null) }, "Reset zoom");
    this.element = h("div", { class: "chart-panel" });
    this.seen = new IntersectionObserver((entries) => this.appeared(entries), { rootMargin: "300px" });
    this.entries = new Map();
    this.sections = [];
    this.reload = debounced(() => this.refresh(), 120);
    this.setSections(sections);
  }

  /** Set what is drawn; charts that stay keep their place. */
  setSections(sections) {
    const wanted = JSON.stringify(sections);
    if (this.wanted === wanted) return;
    this.wanted = wanted;
    this.seen.disconnect();
    this.group.destroy();
    this.entries.clear();
    this.element.replaceChildren(
      ...sections.map(({ title, charts }) =>
        h("section", {}, title ? h("h3", {}, title) : null, h("div", { class: "charts" }, charts.map((each) => this.entry(each)))),
      ),
    );
  }

  entry({ title, names }) {
    const chart = new CurveChart(this.group, title);
    this.entries.set(chart.figure, { chart, names, visible: false, stale: true });
    this.seen.observe(chart.figure);
    return chart.figure;
  }

  appeared(entries) {
    for (const each of entries) {
      const entry = this.entries.get(each.target);
      if (!entry) continue;
      entry.visible = each.isIntersecting;
      if (entry.visible && entry.stale) this.loadEntry(entry);
    }
  }

  setRuns(runs) {
    this.runs = runs;
    this.refresh();
  }

  set(options) {
    Object.assign(this.options, options);
    if ("x" in options) this.group.zoom = null;
    this.reset.hidden = this.group.zoom === null;
    this.reload();
  }

  zoomed(range) {
    this.reset.hidden = range === null;
    this.reload();
  }

  /** Draw again with the present colours, without loading. */
  redraw() {
    for (const { chart } of this.entries.values()) chart.redraw();
  }

  refresh() {
    for (const entry of this.entries.values()) {
      entry.stale = true;
      if (entry.visible) this.loadEntry(entry);
    }
  }

  /** Load a chart's points; while a request is under way further ones become one. */
  async loadEntry(entry) {
    if (entry.busy) return;
    entry.busy = true;
    while (entry.stale) {
      entry.stale = false;
      await this.drawEntry(entry);
    }
    entry.busy = false;
  }

  async drawEntry(entry) {
    const { x, smooth, scale, cut } = this.options;
    const [from, to] = this.group.zoom ?? [null, null];
    const pixels = Math.max(200, entry.chart.body.clientWidth || 600);
    const parameters = { run: this.runs.map((each) => each.id), name: entry.names, x, pixels, from, to };
    if (!this.runs.length) return entry.chart.update([], { unit: "number", xKind: x, scale, cut });
    try {
      const raw = await load("/api/series", parameters);
      const charts = raw.charts ?? [raw];
      const curves = smooth > 0 ? [...this.curves(charts, true), ...this.curves(charts, false, smooth)] : this.curves(charts, false);
      entry.chart.update(curves, { unit: charts[0]?.unit ?? "number", xKind: x, scale, cut });
    } catch (error) {
      if (error.status === undefined) throw error;
      entry.chart.note.textContent = error.message;
    }
    return undefined;
  }

  /** Return the curves: of one run each series has a colour, of several each run; what follows the first is dashed. */
  curves(charts, faint, weight = 0) {
    const single = this.runs.length === 1;
    return charts.flatMap(({ name, series }, at) =>
      series
        .map((points) => ({ points, run: this.runs.find((each) => each.id === points.run) }))
        .filter(({ run, points }) => run && points.x.length)
        .map(({ run, points }) => ({ run, points: { x: points.x, y: smoothed(points.y, weight) } }))
        .map(({ run, points }) => ({ run, points: name.startsWith("val_") ? changes(points.x, points.y) : [points.x, points.y] }))
        .map(({ run, points: [x, y] }) => ({
          id: single ? name : run.id,
          label: single ? readable(name) : `${run.label}${at ? ` (${readable(name)})` : ""}`,
          colour: single && at ? runColour(at) : run.colour,
          dash: at ? [6, 4] : run.dash,
          faint,
          x,
          y,
        })),
    );
  }

  destroy() {
    this.seen.disconnect();
    this.group.destroy();
  }
}

// One chart of curves on uPlot: every curve has its own x values (uPlot's mode 2), so that runs need no common steps.

import { themeColour } from "../colours.js";
import { h } from "../dom.js";
import { formatTick, formatValue } from "../format.js";
import { paddedRange, valueRange, wantsLogarithm } from "./points.js";
import { Readout } from "./readout.js";
import { logarithmicTicks, timeTicks } from "./scale.js";

const CHART_HEIGHT = 220;
// Below that many points each is drawn as a dot, too.
const SPARSE = 25;

/** A figure with caption, curves, note on what is cut, and readout at the cursor; `group` shares cursor and zoom. */
export class CurveChart {
  constructor(group, title) {
    this.group = group;
    this.title = title;
    this.curves = [];
    this.plot = null;
    this.highlighted = null;
    this.caption = h("span", { class: "chart-title" }, title);
    this.value = h("span", { class: "chart-value" });
    this.note = h("p", { class: "chart-note" });
    this.body = h("div", { class: "chart-body" });
    this.figure = h(
      "figure",
      { class: "chart", tabindex: "0", role: "group", "aria-label": title, "aria-keyshortcuts": "ArrowLeft ArrowRight + - 0" },
      h("figcaption", {}, this.caption, this.value),
      this.body,
      this.note,
    );
    this.readout = new Readout(this);
    this.resized = new ResizeObserver(() => this.resize());
    this.resized.observe(this.body);
    group.add(this);
  }

  /** Draw `curves`: [{id, label, colour, dash, faint, x, y}]; `options`: {unit, xKind, scale, cut}. */
  update(curves, options) {
    this.curves = curves;
    this.options = options;
    this.redraw();
  }

  redraw() {
    if (!this.options || !this.body.clientWidth) return;
    const { scale, cut, unit } = this.options;
    const solid = this.curves.filter((each) => !each.faint);
    this.range = valueRange((solid.length ? solid : this.curves).map((each) => each.y), cut);
    this.logarithmic = scale === "log" ? this.range.high > 0 : scale === "auto" && wantsLogarithm(this.range);
    if (this.logarithmic && this.range.low <= 0) this.range = { ...this.range, low: this.lowestPositive() };
    const { hidden, extreme } = this.range;
    const times = hidden === 1 ? "1 point lies" : `${hidden.toLocaleString("en")} points lie`;
    this.note.textContent = hidden ? `${times} outside (farthest: ${formatValue(extreme, unit)})` : "";
    if (this.logarithmic) this.note.textContent += `${hidden ? " · " : ""}logarithmic axis`;
    this.plot?.destroy();
    this.plot = this.curves.length ? new window.uPlot(this.plotOptions(), this.plotData(), this.body) : null;
    this.body.classList.toggle("without-points", !this.curves.some((each) => each.x.length));
    this.readout.attach(this.plot);
    this.describe();
  }

  lowestPositive() {
    const positive = this.curves.flatMap((each) => each.y.filter((y) => y > 0));
    return positive.reduce((low, y) => Math.min(low, y), this.range.high);
  }

  /** Return the ends of x: the group's zoom, or all points. */
  horizontalRange() {
    if (this.group.zoom) return this.group.zoom;
    const ends = this.curves.filter((each) => each.x.length).map((each) => [each.x[0], each.x[each.x.length - 1]]);
    const low = Math.min(...ends.map((each) => each[0]));
    const high = Math.max(...ends.map((each) => each[1]));
    if (!ends.length) return [0, 1];
    // A little room, so that dots at the ends are not cut.
    const margin = (high - low) * 0.012;
    return low === high ? [low - 1, high + 1] : [low - margin, high + margin];
  }

  plotData() {
    return [null, ...this.curves.map((each) => [each.x, each.y])];
  }

  plotOptions() {
    const { unit, xKind } = this.options;
    const [ink, rule] = [themeColour("dim"), themeColour("rule")];
    const axis = { stroke: ink, grid: { stroke: rule, width: 1 }, ticks: { stroke: rule, width: 1, size: 4 }, font: "11px system-ui, sans-serif" };
    const ends = this.logarithmic ? [this.range.low / 1.15, this.range.high * 1.15] : paddedRange(this.range.low, this.range.high);
    const few = this.curves.length <= 12;
    return {
      mode: 2,
      width: this.body.clientWidth,
      height: CHART_HEIGHT,
      legend: { show: false },
      padding: [8, 10, 0, 0],
      scales: {
        x: { time: false, auto: false, range: () => this.horizontalRange() },
        y: { auto: false, distr: this.logarithmic ? 3 : 1, range: () => ends },
      },
      axes: [
        { ...axis, size: 28, space: 70, ...(xKind === "seconds" ? { splits: (_, at, low, high) => timeTicks(low, high, this.body.clientWidth / 90) } : {}), values: (_, ticks) => ticks.map((each) => formatTick(each, xKind)) },
        {
          ...axis,
          size: (plot, labels) => Math.max(44, 14 + 6.4 * Math.max(0, ...(labels ?? []).map((each) => each?.length ?? 0))),
          space: 34,
          ...(this.logarithmic ? { splits: (_, at, low, high) => logarithmicTicks(low, high, 6), filter: (_, ticks) => ticks } : {}),
          values: (plot, ticks) => ticks.map((each) => formatTick(each, unit)),
        },
      ],
      series: [{}, ...this.curves.map((each) => this.seriesOptions(each, few))],
      cursor: {
        y: false,
        points: { show: false },
        drag: { x: true, y: false, setScale: false },
        dataIdx: () => null,
        focus: { prox: -1 },
      },
      hooks: { setSelect: [(plot) => this.select(plot)], drawSeries: [(plot, index) => this.drawDots(plot, index)] },
    };
  }

  seriesOptions(curve, few) {
    const chosen = this.highlighted === null || this.highlighted === curve.id;
    const width = (curve.faint ? 1 : few ? 1.75 : 1.25) * (this.highlighted === curve.id ? 1.5 : 1);
    return {
      facets: [{ scale: "x", auto: false, sorted: 1 }, { scale: "y", auto: false }],
      stroke: curve.colour,
      width,
      dash: curve.dash,
      alpha: (curve.faint ? 0.28 : 1) * (chosen ? 1 : 0.35),
      spanGaps: true,
      paths: window.uPlot.paths.linear(),
    };
  }

  /** Draw the points of a sparse curve as dots: uPlot draws none of its own where curves have their own x. */
  drawDots(plot, index) {
    const curve = this.curves[index - 1];
    if (!curve || curve.faint || curve.x.length > SPARSE) return;
    const { ctx } = plot;
    ctx.save();
    ctx.fillStyle = curve.colour;
    ctx.globalAlpha = plot.series[index].alpha;
    ctx.beginPath();
    ctx.rect(plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height);
    ctx.clip();
    curve.x.forEach((x, at) => {
      if (curve.y[at] === null) return;
      ctx.beginPath();
      ctx.arc(plot.valToPos(x, "x", true), plot.valToPos(curve.y[at], "y", true), 2.5 * devicePixelRatio, 0, 2 * Math.PI);
      ctx.fill();
    });
    ctx.restore();
  }

  select(plot) {
    const { left, width } = plot.select;
    if (width < 6) return;
    this.group.zoomTo([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  }

  /** Draw one run strongly and the others weakly; null: all alike. */
  highlight(id) {
    if (this.highlighted === id) return;
    this.highlighted = id;
    if (!this.plot) return;
    this.curves.forEach((curve, at) => {
      const options = this.seriesOptions(curve, this.curves.length <= 12);
      this.plot.series[at + 1].alpha = options.alpha;
      this.plot.series[at + 1].width = options.width;
    });
    this.plot.redraw(false);
  }

  resize() {
    if (this.plot && this.body.clientWidth) this.plot.setSize({ width: this.body.clientWidth, height: CHART_HEIGHT });
    else this.redraw();
  }

  /** Say in words what is drawn: for screen readers, and for tests. */
  describe() {
    const solid = this.curves.filter((each) => !each.faint && each.y.length);
    const parts = solid.slice(0, 12).map((each) => {
      const last = each.y.findLast((y) => y !== null);
      return `${each.label} ends at ${formatValue(last ?? null, this.options.unit)}`;
    });
    const more = solid.length > 12 ? `, and ${solid.length - 12} more` : "";
    this.figure.setAttribute("aria-label", `${this.title}: ${parts.join(", ") || "no points yet"}${more}`);
    this.figure.dataset.points = String(Math.max(0, ...this.curves.map((each) => each.x.length)));
  }

  destroy() {
    this.resized.disconnect();
    this.plot?.destroy();
    this.plot = null;
  }
}

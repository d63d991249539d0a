// Values at the cursor: a line through all charts of a group, dots, and a list of the runs' values.

import { h } from "../dom.js";
import { formatValue, formatX } from "../format.js";
import { nearestIndex } from "./points.js";

const MOST_ROWS = 8;
const MOST_DOTS = 24;

export class Readout {
  constructor(chart) {
    this.chart = chart;
    this.line = h("div", { class: "cursor-line", hidden: true });
    this.dots = h("div", { class: "cursor-dots", "aria-hidden": "true" });
    this.box = h("div", { class: "readout", hidden: true, role: "status" });
    chart.figure.append(this.box);
    chart.figure.addEventListener("keydown", (event) => this.key(event));
    chart.figure.addEventListener("blur", () => chart.group.moveCursor(null, null));
  }

  /** Listen to the pointer over a plot that was drawn again. */
  attach(plot) {
    if (!plot) return;
    plot.over.append(this.line, this.dots);
    plot.over.addEventListener("pointermove", (event) => this.point(plot, event));
    plot.over.addEventListener("pointerdown", (event) => event.pointerType !== "mouse" && this.point(plot, event));
    // A finger leaves when it is lifted: the values stay to be read.
    plot.over.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.chart.group.moveCursor(null, null));
    plot.over.addEventListener("dblclick", () => this.chart.group.zoomTo(null));
    this.show(this.chart.group.cursor, false);
  }

  point(plot, event) {
    const area = plot.over.getBoundingClientRect();
    this.height = event.clientY - area.top;
    this.chart.group.moveCursor(plot.posToVal(event.clientX - area.left, "x"), this.chart);
  }

  key(event) {
    const { group } = this.chart;
    const [low, high] = this.chart.horizontalRange();
    const step = (high - low) / (event.shiftKey ? 10 : 60);
    const at = group.cursor ?? (low + high) / 2;
    const moves = { ArrowLeft: at - step, ArrowRight: at + step, Home: low, End: high };
    if (event.key in moves) {
      this.height = null;
      group.moveCursor(Math.min(high, Math.max(low, moves[event.key])), this.chart);
    } else if (event.key === "+" || event.key === "=") group.zoomTo([at - (high - low) / 4, at + (high - low) / 4]);
    else if (event.key === "-") group.zoomOut(low, high);
    else if (event.key === "0" || event.key === "Escape") group.zoomTo(null);
    else return;
    event.preventDefault();
  }

  /** Show the values at `x` (null: none); the list is shown only by the chart that the reader points at. */
  show(x, listed) {
    const { plot, curves, value } = this.chart;
    this.line.hidden = x === null || !plot;
    this.dots.replaceChildren();
    this.box.hidden = true;
    value.textContent = "";
    if (x === null || !plot) return;
    this.line.style.setProperty("transform", `translateX(${plot.valToPos(x, "x")}px)`);
    const found = curves
      .filter((each) => !each.faint)
      .map((curve) => ({ curve, index: nearestIndex(curve.x, curve.y, x) }))
      .filter(({ index }) => index >= 0)
      .map(({ curve, index }) => ({ curve, x: curve.x[index], y: curve.y[index], top: plot.valToPos(curve.y[index], "y") }));
    if (found.length <= MOST_DOTS) this.dots.append(...found.map((each) => this.dot(plot, each)));
    if (curves.filter((each) => !each.faint).length === 1 && found.length) {
      value.textContent = `${formatValue(found[0].y, this.chart.options.unit)} at ${formatX(found[0].x, this.chart.options.xKind)}`;
    }
    if (listed && found.length) this.list(plot, x, found);
  }

  dot(plot, { curve, x, top }) {
    const place = { left: `${plot.valToPos(x, "x")}px`, top: `${top}px`, background: curve.colour };
    return h("i", { style: place });
  }

  list(plot, x, found) {
    const { unit, xKind } = this.chart.options;
    const near = this.height === null || this.height === undefined ? null : this.height;
    const distance = (each) => (near === null ? each.top : Math.abs(each.top - near));
    const nearest = [...found].sort((one, other) => distance(one) - distance(other));
    const rows = nearest.slice(0, MOST_ROWS).sort((one, other) => one.top - other.top);
    const more = found.length - rows.length;
    this.box.replaceChildren(
      h("strong", {}, formatX(x, xKind)),
      ...rows.map((each) =>
        h(
          "span",
          { class: each === nearest[0] && found.length > 1 ? "row nearest" : "row" },
          h("i", { class: "swatch", style: { "--c": each.curve.colour } }),
          h("span", { class: "name" }, each.curve.label),
          h("b", {}, formatValue(each.y, unit)),
        ),
      ),
      more > 0 ? h("span", { class: "row" }, `and ${more} more`) : "",
    );
    this.box.hidden = false;
    const left = plot.over.offsetLeft + plot.valToPos(x, "x");
    const right = left > this.chart.body.clientWidth / 2;
    this.box.style.setProperty("left", right ? "auto" : `${left + 14}px`);
    this.box.style.setProperty("right", right ? `${this.chart.body.clientWidth - left + 14}px` : "auto");
    if (found.length > 1) this.chart.group.highlight(near === null ? null : nearest[0].curve.id);
  }
}

// Parallel coordinates: one axis a column, one line a run; dragging along an axis keeps the runs within that range.

import { scaleColour } from "../colours.js";
import { h, s } from "../dom.js";
import { formatValue } from "../format.js";
import { runLink } from "../views/run_row.js";
import { numberScale, textScale } from "./scale.js";
import { usualAxes } from "./scatter_plot.js";

const PARALLEL_HEIGHT = 440;
const [PARALLEL_TOP, PARALLEL_BOTTOM, SIDE] = [64, 24, 80];
const SETTING_AXES = ["policy", "jitCompile", "optimizer", "learningRate", "globalBatchSize", "replicas", "accelerator", "epochs", "seed"];

/** Return the plot with its menu; the columns in which runs differ are its axes, coloured by the last. */
export function parallelPlot(runs, columns, axes, choose) {
  const differing = columns.filter((each) => each.kind !== "time" && new Set(runs.map((run) => run.values[each.key]).filter((value) => value !== undefined && value !== null)).size > 1);
  if (runs.length < 2 || !differing.length) return h("p", { class: "empty" }, "Parallel coordinates need two runs or more that differ in something.");
  const numeric = differing.filter((each) => each.kind !== "text");
  const usual = numeric.length ? usualAxes(numeric) : { x: differing[0], y: differing[0] };
  const target = differing.find((each) => each.key === axes.y) ?? usual.y;
  const settings = SETTING_AXES.map((key) => differing.find((each) => each.key === key)).filter(Boolean);
  const measured = [...new Set([usual.x, differing.find((each) => each.key === "peakMemoryBytes")])].filter((each) => each && each !== target && !settings.includes(each));
  const shown = [...settings.filter((each) => each !== target), ...measured, target];
  const menu = h("select", { "aria-label": "Coloured by", onchange: (event) => choose({ y: event.target.value }) }, differing.map((each) => h("option", { value: each.key, selected: each === target }, each.title)));
  return parallelSection(runs, shown, target, h("label", { class: "inline" }, "Coloured by ", menu));
}

/** Return the plot with these columns as its axes, coloured by `target`; `control` stands before the advice. */
export function parallelSection(runs, shown, target, control = "") {
  const told = h("p", { class: "chart-note", role: "status" });
  return h(
    "section",
    { class: "parallel" },
    h("div", { class: "controls" }, control, h("span", { class: "chart-note" }, "Drag along an axis to keep the runs within a range; click it to clear.")),
    h("div", { class: "plot wide" }, new ParallelPicture(runs, shown, target, told).element),
    told,
  );
}

class ParallelPicture {
  constructor(runs, columns, target, told) {
    this.runs = runs;
    this.told = told;
    this.ranges = new Map();
    this.width = Math.max(860, SIDE * 2 + (columns.length - 1) * 130);
    const gap = columns.length > 1 ? (this.width - 2 * SIDE) / (columns.length - 1) : 0;
    this.axes = columns.map((column, index) => this.axis(column, columns.length > 1 ? SIDE + index * gap : this.width / 2));
    // By rank, so that one outlier does not give all the others one colour.
    const ranked = [...new Set(runs.map((run) => run.values[target.key]).filter((each) => each !== undefined && each !== null))].sort((one, other) => (typeof one === "number" ? one - other : String(one).localeCompare(String(other))));
    this.lines = runs.map((run) => this.line(run, target, ranked));
    this.element = s(
      "svg",
      { viewBox: `0 0 ${this.width} ${PARALLEL_HEIGHT}`, role: "group", "aria-label": `Parallel coordinates of ${runs.length} runs over ${columns.map((each) => each.title).join(", ")}` },
      this.lines.map((each) => each.element),
      this.axes.map((each) => each.element),
    );
  }

  axis(column, left) {
    const values = this.runs.map((run) => run.values[column.key]).filter((each) => each !== undefined && each !== null);
    const numbers = values.every((each) => typeof each === "number");
    const few = numbers && new Set(values).size <= 6 && column.kind === "number" && !/:/.test(column.key);
    const scale = numbers && !few ? numberScale(values, PARALLEL_HEIGHT - PARALLEL_BOTTOM, PARALLEL_TOP, column.kind) : textScale(values, PARALLEL_HEIGHT - PARALLEL_BOTTOM, PARALLEL_TOP);
    const ticks = numbers && few ? scale.ticks.map((each) => ({ ...each, text: formatValue(Number(each.value), column.kind) })) : scale.ticks;
    const brush = s("rect", { class: "brush", x: left - 9, width: 18, y: 0, height: 0 });
    const reach = s("rect", { class: "axis-reach", x: left - 22, width: 44, y: PARALLEL_TOP - 8, height: PARALLEL_HEIGHT - PARALLEL_TOP - PARALLEL_BOTTOM + 16 });
    const axis = { column, left, scale, brush };
    reach.addEventListener("pointerdown", (event) => this.drag(event, axis, reach));
    axis.element = s(
      "g",
      {},
      s("text", { class: "axis", x: left, y: PARALLEL_TOP - 30, "text-anchor": "middle" }, column.title),
      scale.logarithmic ? s("text", { x: left, y: PARALLEL_TOP - 15, "text-anchor": "middle" }, "logarithmic") : "",
      s("line", { class: "axis-line", x1: left, x2: left, y1: PARALLEL_TOP, y2: PARALLEL_HEIGHT - PARALLEL_BOTTOM }),
      ticks.map(({ place, text }) => s("text", { class: "on-axis", x: left + 7, y: place + 4 }, text)),
      brush,
      reach,
    );
    return axis;
  }

  line(run, target, ranked) {
    const points = this.axes.map(({ column, left, scale: each }) => [left, run.values[column.key], each]).filter(([, value]) => value !== undefined && value !== null);
    const path = points.map(([left, value, each], at) => `${at ? "L" : "M"}${left.toFixed(1)} ${each.at(value).toFixed(1)}`).join("");
    const value = run.values[target.key];
    const share = value === undefined || value === null ? null : ranked.indexOf(value) / Math.max(1, ranked.length - 1);
    const text = `${run.label}: ${target.title} ${formatValue(value, target.kind)}`;
    const element = s("a", { href: runLink(run), class: "parallel-line", "data-run": run.id, "aria-label": text }, s("path", { class: "reach", d: path }), s("path", { class: "mark", d: path, style: { stroke: share === null ? "var(--dim)" : scaleColour(share) } }), s("title", {}, text));
    return { run, element };
  }

  /** Follow the pointer along an axis; a click without a drag clears its range. */
  drag(event, axis, reach) {
    event.preventDefault();
    const pixel = (moved) => {
      const area = this.element.getBoundingClientRect();
      return Math.min(PARALLEL_HEIGHT - PARALLEL_BOTTOM + 8, Math.max(PARALLEL_TOP - 8, ((moved.clientY - area.top) / area.height) * PARALLEL_HEIGHT));
    };
    const start = pixel(event);
    const move = (moved) => this.setRange(axis, [start, pixel(moved)]);
    reach.setPointerCapture(event.pointerId);
    this.setRange(axis, [start, start]);
    reach.addEventListener("pointermove", move);
    reach.addEventListener("pointerup", () => reach.removeEventListener("pointermove", move), { once: true });
  }

  setRange(axis, [one, other]) {
    const [top, bottom] = [Math.min(one, other), Math.max(one, other)];
    if (bottom - top < 4) this.ranges.delete(axis);
    else this.ranges.set(axis, [top, bottom]);
    axis.brush.setAttribute("y", top);
    axis.brush.setAttribute("height", bottom - top < 4 ? 0 : bottom - top);
    const inside = (run) =>
      [...this.ranges].every(([{ column, scale }, [from, to]]) => {
        const value = run.values[column.key];
        return value !== undefined && value !== null && scale.at(value) >= from && scale.at(value) <= to;
      });
    const within = this.lines.filter(({ run, element }) => {
      const kept = inside(run);
      element.classList.toggle("outside", !kept);
      return kept;
    });
    this.told.textContent = this.ranges.size ? `${within.length} of ${this.runs.length} runs: ${within.slice(0, 8).map((each) => each.run.label).join(", ")}${within.length > 8 ? ", …" : ""}` : "";
  }
}

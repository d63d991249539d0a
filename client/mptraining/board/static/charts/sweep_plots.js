// Plots of a sweep: the best objective so far, and a matrix of scatter plots coloured by the objective.

import { scaleColour } from "../colours.js";
import { h, s } from "../dom.js";
import { formatValue } from "../format.js";
import { runLink } from "../views/run_row.js";
import { numberScale, textScale } from "./scale.js";

const [CURVE_WIDTH, CURVE_HEIGHT] = [860, 260];
const MARGIN = { left: 70, right: 18, top: 14, bottom: 42 };
// Beyond it a cell would be too small to read.
const MOST_MATRIX = 7;

/** Return the trials that have an objective, in the order in which they ended. */
export function scored(trials, objective) {
  return trials.filter((each) => typeof each.values[objective.key] === "number").sort((one, other) => one.ended - other.ended || one.number - other.number);
}

/** Return the best objective up to and including each trial. */
export function bestSoFar(values, better) {
  const pick = better === "higher" ? Math.max : Math.min;
  let best = null;
  return values.map((value) => (best = best === null ? value : pick(best, value)));
}

/** Return the curve of the best objective so far, with a dot for each trial. */
export function bestCurve(trials, objective) {
  const ended = scored(trials, objective);
  if (!ended.length) return h("p", { class: "empty" }, "No trial has ended yet. The curve begins with the first one.");
  const values = ended.map((each) => each.values[objective.key]);
  const best = bestSoFar(values, objective.better);
  const upwards = numberScale(values, CURVE_HEIGHT - MARGIN.bottom, MARGIN.top, "number", 5);
  const across = (at) => MARGIN.left + ((at + 0.5) / ended.length) * (CURVE_WIDTH - MARGIN.left - MARGIN.right);
  const steps = best.map((value, at) => `${at ? `H${across(at).toFixed(1)}V` : `M${across(at).toFixed(1)} `}${upwards.at(value).toFixed(1)}`).join("");
  const every = Math.max(1, Math.ceil(ended.length / 20));
  return h(
    "div",
    { class: "plot" },
    s(
      "svg",
      { viewBox: `0 0 ${CURVE_WIDTH} ${CURVE_HEIGHT}`, role: "group", "aria-label": `Best ${objective.title} so far: ${formatValue(best.at(-1), "number")} after ${ended.length} trials`, "data-points": ended.length },
      upwards.ticks.map(({ place, text }) => [s("line", { class: "grid", x1: MARGIN.left, x2: CURVE_WIDTH - MARGIN.right, y1: place, y2: place }), s("text", { x: MARGIN.left - 8, y: place + 4, "text-anchor": "end" }, text)]),
      ended.map((each, at) => (at % every ? "" : s("text", { x: across(at), y: CURVE_HEIGHT - MARGIN.bottom + 17, "text-anchor": "middle" }, String(at + 1)))),
      s("text", { class: "axis", x: (MARGIN.left + CURVE_WIDTH - MARGIN.right) / 2, y: CURVE_HEIGHT - 6, "text-anchor": "middle" }, "ended trials"),
      s("path", { class: "best-line", d: steps }),
      ended.map((each, at) => mark(each, [across(at), upwards.at(values[at])], `${each.label}: ${objective.title} ${formatValue(values[at], "number")}`, values[at] === best[at] && (at === 0 || best[at] !== best[at - 1]) ? "var(--accent)" : "var(--dim)")),
    ),
  );
}

function mark(trial, [left, top], text, colour, radius = 4.5) {
  return s(
    "a",
    { href: runLink(trial), class: "dot", "data-run": trial.id, "aria-label": text },
    s("circle", { class: "reach", cx: left, cy: top, r: 9 }),
    s("circle", { class: "mark", cx: left, cy: top, r: radius, style: { fill: colour } }),
    s("title", {}, text),
  );
}

/** Return a scatter plot for each pair of columns, coloured by the rank of the objective; the objective is the last row. */
export function scatterMatrix(trials, columns, objective) {
  const drawn = scored(trials, objective);
  const varied = columns.filter((column) => new Set(drawn.map((each) => each.values[column.key]).filter((value) => value !== undefined)).size > 1);
  if (drawn.length < 2 || !varied.length) return h("p", { class: "empty" }, "The matrix needs two ended trials that differ.");
  const shown = varied.slice(0, MOST_MATRIX);
  const rows = [...shown.slice(1), objective];
  const cell = Math.max(118, Math.min(190, 860 / shown.length));
  const [left, top] = [92, 8];
  const ranked = [...new Set(drawn.map((each) => each.values[objective.key]))].sort((one, other) => one - other);
  const colour = (trial) => scaleColour(ranked.indexOf(trial.values[objective.key]) / Math.max(1, ranked.length - 1));
  const scale = (column, start, end) => axisScale(column, drawn, start, end);
  const width = left + shown.length * cell + 10;
  const height = top + rows.length * cell + 48;
  const cells = rows.flatMap((y, row) =>
    shown.slice(0, row + 1).map((x, column) => {
      const [begin, above] = [left + column * cell, top + row * cell];
      const [across, upwards] = [scale(x, begin + 10, begin + cell - 10), scale(y, above + cell - 10, above + 10)];
      const dots = drawn
        .filter((each) => each.values[x.key] !== undefined && each.values[y.key] !== undefined)
        .map((each) => mark(each, [across.at(each.values[x.key]), upwards.at(each.values[y.key])], `${each.label}: ${x.title} ${formatValue(each.values[x.key], "number")}, ${y.title} ${formatValue(each.values[y.key], "number")}, ${objective.title} ${formatValue(each.values[objective.key], "number")}`, colour(each), 3.6));
      return s("g", {}, s("rect", { class: "cell", x: begin, y: above, width: cell - 4, height: cell - 4 }), dots);
    }),
  );
  const legends = [
    ...rows.map((y, row) => axisText(y, scale(y, top + (row + 1) * cell - 14, top + row * cell + 10), (tick) => ({ x: left - 5, y: tick.place + 4, "text-anchor": "end" }), { x: 12, y: top + (row + 0.5) * cell, "text-anchor": "middle", transform: `rotate(-90 12 ${top + (row + 0.5) * cell})` })),
    ...shown.map((x, column) => axisText(x, scale(x, left + column * cell + 10, left + (column + 1) * cell - 14), (tick) => ({ x: tick.place, y: top + rows.length * cell + 12, "text-anchor": "middle" }), { x: left + (column + 0.5) * cell, y: top + rows.length * cell + 34, "text-anchor": "middle" })),
  ];
  const cut = varied.length > shown.length ? h("p", { class: "chart-note" }, `The first ${shown.length} of ${varied.length} parameters.`) : "";
  return h("div", {}, h("div", { class: "plot wide" }, s("svg", { class: "matrix", viewBox: `0 0 ${width} ${height}`, style: { "max-width": `${width * 1.2}px` }, role: "group", "aria-label": `Scatter matrix of ${drawn.length} trials over ${shown.map((each) => each.title).join(", ")}` }, legends, cells)), cut);
}

function axisScale(column, trials, start, end) {
  const values = trials.map((each) => each.values[column.key]).filter((each) => each !== undefined);
  const numbers = values.every((each) => typeof each === "number") && new Set(values).size > 6;
  return numbers ? numberScale(values, start, end, "number", 3) : textScale(values, start, end);
}

function axisText(column, scale, place, title) {
  // The ends are enough where there is little room.
  const ticks = scale.ticks.length <= 4 ? scale.ticks : [scale.ticks[0], scale.ticks.at(-1)];
  return s("g", {}, ticks.map((tick) => s("text", { class: "small", ...place(tick) }, tick.text.length > 11 ? `${tick.text.slice(0, 10)}…` : tick.text)), s("text", { class: "axis", ...title }, column.title));
}

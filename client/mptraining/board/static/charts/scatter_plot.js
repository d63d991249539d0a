// Scatter of any two columns; a run is a dot that links to its page.

import { h, s } from "../dom.js";
import { formatValue } from "../format.js";
import { runLink } from "../views/run_row.js";
import { numberScale } from "./scale.js";

const [WIDTH, HEIGHT] = [860, 460];
const [LEFT, RIGHT, TOP, BOTTOM] = [76, 24, 16, 52];

/** Return the plot with its menus; `choose` is called with the axes that the reader picks. */
export function scatterPlot(runs, columns, axes, choose) {
  const numeric = columns.filter((each) => each.kind !== "text" && each.kind !== "time" && runs.some((run) => typeof run.values[each.key] === "number"));
  if (!numeric.length) return h("p", { class: "empty" }, "These runs have no numbers to draw yet. They appear with the first progress of a run.");
  const usual = usualAxes(numeric);
  const x = numeric.find((each) => each.key === axes.x) ?? usual.x;
  const y = numeric.find((each) => each.key === axes.y) ?? usual.y;
  const isUsual = x === usual.x && y === usual.y;
  const shortcut = h("button", { type: "button", id: "time-loss", "aria-pressed": String(isUsual), onclick: () => choose({ x: usual.x.key, y: usual.y.key }) }, `${usual.x.title} against ${usual.y.title}`);
  const drawn = runs.filter((each) => typeof each.values[x.key] === "number" && typeof each.values[y.key] === "number");
  const missing = runs.length - drawn.length;
  return h(
    "section",
    { class: "scatter" },
    h("div", { class: "controls" }, menu("Across", numeric, x, (key) => choose({ x: key })), menu("Upwards", numeric, y, (key) => choose({ y: key })), shortcut),
    drawn.length ? picture(drawn, x, y) : h("p", { class: "empty" }, `No run has both ${x.title} and ${y.title}.`),
    missing && drawn.length ? h("p", { class: "chart-note" }, `${missing} ${missing === 1 ? "run has" : "runs have"} no value of one of the two.`) : "",
    front(drawn, x, y).length > 1 ? h("p", { class: "chart-note" }, "The line joins the runs that finished and that no other beats in both.") : "",
  );
}

/** Return the axes to begin with: time against loss. */
export function usualAxes(numeric) {
  const first = (...keys) => keys.map((key) => numeric.find((each) => each.key === key)).find(Boolean);
  const x = first("totalSeconds", "stepSeconds") ?? numeric[0];
  const loss = first("last:val_loss", "last:loss", "best:val_loss", "best:loss");
  return { x, y: loss ?? numeric.find((each) => each !== x && /^(best|last):/.test(each.key)) ?? numeric.find((each) => each !== x) ?? x };
}

function menu(title, columns, chosen, pick) {
  const options = columns.map((each) => h("option", { value: each.key, selected: each === chosen }, each.title));
  return h("label", { class: "inline" }, `${title} `, h("select", { "aria-label": title, onchange: (event) => pick(event.target.value) }, options));
}

function picture(runs, x, y) {
  const across = numberScale(runs.map((each) => each.values[x.key]), LEFT, WIDTH - RIGHT, x.kind);
  const upwards = numberScale(runs.map((each) => each.values[y.key]), HEIGHT - BOTTOM, TOP, y.kind);
  const place = (run) => [across.at(run.values[x.key]), upwards.at(run.values[y.key])];
  const best = front(runs, x, y).map((run) => place(run).join(","));
  const named = runs.length <= 24;
  const placed = runs.map(place).map(([left, top]) => ({ left: left - 6, right: left + 6, top: top - 6, bottom: top + 6 }));
  return h(
    "div",
    { class: "plot" },
    s(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", "aria-label": `${y.title} against ${x.title}, ${runs.length} runs` },
      across.ticks.map(({ place: at, text }) => [s("line", { class: "grid", x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM }), s("text", { x: at, y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, text)]),
      upwards.ticks.map(({ place: at, text }) => [s("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: at, y2: at }), s("text", { x: LEFT - 8, y: at + 4, "text-anchor": "end" }, text)]),
      s("text", { class: "axis", x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 10, "text-anchor": "middle" }, axisTitle(x, across)),
      s("text", { class: "axis", "text-anchor": "middle", transform: `translate(14 ${(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)` }, axisTitle(y, upwards)),
      best.length > 1 ? s("polyline", { class: "front", points: best.join(" ") }) : "",
      runs.map((run) => dot(run, place(run), x, y, named ? labelPlace(placed, place(run), run.label) : null)),
    ),
  );
}

/** Return where a label beside this dot covers no dot and no other label, and remember it; null if nowhere. */
function labelPlace(placed, [left, top], label) {
  const width = label.length * 6.8;
  const overlaps = (box) => placed.some((each) => box.left < each.right && box.right > each.left && box.top < each.bottom && box.bottom > each.top);
  for (const [x, y] of [[left + 9, top], [left - 9 - width, top], [left - width / 2, top - 15], [left - width / 2, top + 15], [left + 7, top - 12], [left + 7, top + 12]]) {
    const box = { left: x, right: x + width, top: y - 7, bottom: y + 7 };
    if (box.left < LEFT || box.right > WIDTH - 2 || box.top < 2 || box.bottom > HEIGHT - BOTTOM || overlaps(box)) continue;
    placed.push(box);
    return { x, y: y + 4 };
  }
  return null;
}

function axisTitle(column, scale) {
  return column.title + (scale.logarithmic ? " (logarithmic)" : "");
}

function dot(run, [left, top], x, y, named) {
  const text = `${run.label}: ${x.title} ${formatValue(run.values[x.key], x.kind)}, ${y.title} ${formatValue(run.values[y.key], y.kind)}`;
  return s(
    "a",
    { href: runLink(run), class: "dot", "data-run": run.id, "aria-label": text },
    s("circle", { class: "reach", cx: left, cy: top, r: 12 }),
    s("circle", { class: "mark", cx: left, cy: top, r: 5.5, style: { fill: run.colour } }),
    named ? s("text", { class: "dot-name", ...named }, run.label) : "",
    s("title", {}, text),
  );
}

/** Return the runs that no other beats in both columns, from left to right; none where no direction is better. */
export function front(runs, x, y) {
  const direction = (column) => ({ lower: 1, higher: -1 })[column.better ?? (column.kind === "seconds" ? "lower" : /loss/.test(column.key) ? "lower" : null)];
  const [dx, dy] = [direction(x), direction(y)];
  if (!dx || !dy || x === y) return [];
  const ordered = runs.filter((each) => each.state === "Succeeded").sort((one, other) => dx * (one.values[x.key] - other.values[x.key]) || dy * (one.values[y.key] - other.values[y.key]));
  let best = Infinity;
  return ordered.filter((run) => {
    const value = dy * run.values[y.key];
    if (value >= best) return false;
    best = value;
    return true;
  });
}

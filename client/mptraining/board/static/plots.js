// Plots in SVG of runs or trials over their columns: scatter, parallel coordinates, the best so far.

import { formatValue, scaleColour } from "./format.js";
import { inOrder, numberScale, textScale } from "./numbers.js";
import { html, useRef, useState } from "./ui.js";

const WIDTH = 860;
const MARGIN = { left: 76, right: 24, top: 16, bottom: 52 };
const isNumber = (value) => typeof value === "number";
const isKnown = (value) => value !== undefined && value !== null;

/** Scatter of two columns. `items`: [{id, label, link, colour, state, values}]; `axes` are keys of columns. */
export function Scatter({ items, columns, axes, usual, choose }) {
  const some = ({ key, kind }) => kind !== "time" && items.some(({ values }) => isNumber(values[key]));
  const numeric = columns.filter(some);
  if (!numeric.length) return html`<p class="empty">There are no numbers to draw yet.</p>`;
  const named = (wanted) => numeric.find(({ key }) => key === wanted);
  const x = named(axes.x) ?? named(usual.x) ?? numeric[0];
  const y = named(axes.y) ?? named(usual.y) ?? numeric.at(-1);
  const drawn = items.filter(({ values }) => isNumber(values[x.key]) && isNumber(values[y.key]));
  const front = paretoFront(drawn, x, y);
  const option = ({ key, title }) => html`<option value=${key}>${title}</option>`;
  const menu = (title, name, { key }) => html`<label class="inline">${title}
    <select aria-label=${title} value=${key} onChange=${(event) => choose({ [name]: event.target.value })}>
      ${numeric.map(option)}
    </select></label>`;
  return html`<section class="scatter">
    <div class="controls">${menu("Across", "x", x)} ${menu("Upwards", "y", y)}</div>
    ${drawn.length > 0 && html`<${Dots} ...${{ items: drawn, x, y, front }} />`}
    <p class="chart-note">${drawn.length} of ${items.length} have a value of both.
      ${front.length > 1 && " The line joins those that finished and that no other beats in both."}</p>
  </section>`;
}

function Dots({ items, x, y, front }) {
  const height = 460;
  const [right, bottom] = [WIDTH - MARGIN.right, height - MARGIN.bottom];
  const across = numberScale(items.map(({ values }) => values[x.key]), MARGIN.left, right, x.kind);
  const upwards = numberScale(items.map(({ values }) => values[y.key]), bottom, MARGIN.top, y.kind);
  const place = ({ values }) => [across.at(values[x.key]), upwards.at(values[y.key])];
  const titled = ({ title }, { logarithmic }) => title + (logarithmic ? " (logarithmic)" : "");
  const named = labelled(items, place);
  const value = (values, { title, key, kind }) => `${title} ${formatValue(values[key], kind)}`;
  const dot = (item) => {
    const [left, top] = place(item);
    const text = `${item.label}: ${value(item.values, x)}, ${value(item.values, y)}`;
    return html`<a href=${item.link} class="dot" data-run=${item.id} aria-label=${text}>
      <circle class="reach" cx=${left} cy=${top} r="12" />
      <circle class="mark" cx=${left} cy=${top} r="5.5" style=${{ fill: item.colour }} />
      ${named.has(item) && html`<text class="dot-name" x=${left + 9} y=${top + 4}>${item.label}</text>`}
      <title>${text}</title>
    </a>`;
  };
  const column = ({ place: at, text }) => html`<line class="grid" x1=${at} x2=${at} y1=${MARGIN.top} y2=${bottom} />
    <text x=${at} y=${bottom + 18} text-anchor="middle">${text}</text>`;
  const row = ({ place: at, text }) => html`<line class="grid" x1=${MARGIN.left} x2=${right} y1=${at} y2=${at} />
    <text x=${MARGIN.left - 8} y=${at + 4} text-anchor="end">${text}</text>`;
  return html`<div class="plot"><svg viewBox="0 0 ${WIDTH} ${height}" role="group"
      aria-label="${y.title} against ${x.title} of ${items.length}">
    ${across.ticks.map(column)} ${upwards.ticks.map(row)}
    <text class="axis" x=${(MARGIN.left + right) / 2} y=${height - 10} text-anchor="middle">${titled(x, across)}</text>
    <text class="axis" text-anchor="middle" transform="translate(14 ${(MARGIN.top + bottom) / 2}) rotate(-90)">
      ${titled(y, upwards)}
    </text>
    ${front.length > 1 && html`<polyline class="front" points=${front.map((item) => place(item).join()).join(" ")} />`}
    ${items.map(dot)}
  </svg></div>`;
}

/** Return the items whose label, on the right of the dot, covers no dot and no other label. */
function labelled(items, place) {
  const boxes = items.map(place).map(([left, top]) => [left - 6, top - 6, left + 6, top + 6]);
  return new Set(
    items.filter((item) => {
      const [left, top] = place(item);
      const box = [left + 9, top - 7, left + 9 + item.label.length * 6.8, top + 7];
      const overlaps = ([l, t, r, b]) => box[0] < r && box[2] > l && box[1] < b && box[3] > t;
      const free = box[2] < WIDTH && !boxes.some(overlaps);
      if (free) boxes.push(box);
      return free;
    }),
  );
}

/** Return what no other item beats in both columns, from left to right; nothing where no direction is better. */
function paretoFront(items, x, y) {
  const lower = ({ kind, key }) => kind === "seconds" || /loss/.test(key);
  const sign = (column) => ({ lower: 1, higher: -1 })[column.better ?? (lower(column) && "lower")];
  const [dx, dy] = [sign(x), sign(y)];
  if (!dx || !dy || x === y) return [];
  const finished = items.filter(({ state }) => state === "Succeeded");
  const order = (one, other) => dx * (one.values[x.key] - other.values[x.key]);
  const beats = (one, other) => order(one, other) <= 0 && dy * (one.values[y.key] - other.values[y.key]) < 0;
  const beaten = (item) => finished.some((other) => beats(other, item));
  return finished.filter((item) => !beaten(item)).sort(order);
}

/** Return the colours of items by the rank of a column's value: one outlier does not give all others one colour. */
export function rankColours(items, { key }) {
  const ranked = [...new Set(items.map(({ values }) => values[key]).filter(isKnown))].sort(inOrder);
  return new Map(ranked.map((value, rank) => [value, scaleColour(rank / Math.max(1, ranked.length - 1))]));
}

const [TALL, TOP, BOTTOM, SIDE] = [440, 64, 24, 80];

/** Parallel coordinates: an axis a column, a line an item; a drag along an axis keeps the items within that range. */
export function Parallel({ items, columns, target }) {
  const [ranges, setRanges] = useState({});
  const svg = useRef();
  const width = Math.max(WIDTH, SIDE * 2 + (columns.length - 1) * 130);
  const axes = columns.map((column, at) => ({
    column,
    left: SIDE + (at * (width - 2 * SIDE)) / Math.max(1, columns.length - 1),
    scale: parallelScale(items, column),
  }));
  const within = ({ values }) =>
    axes.every(({ column: { key }, scale }) => {
      if (!ranges[key]) return true;
      const place = isKnown(values[key]) ? scale.at(values[key]) : NaN;
      return place >= ranges[key][0] && place <= ranges[key][1];
    });
  const pixel = (event) => {
    const area = svg.current.getBoundingClientRect();
    return Math.min(TALL - BOTTOM + 8, Math.max(TOP - 8, ((event.clientY - area.top) / area.height) * TALL));
  };
  const drag = (event, key) => {
    const { target: reach, pointerId } = event;
    const start = pixel(event);
    const move = (moved) => {
      const range = [start, pixel(moved)].sort((a, b) => a - b);
      // A click without a drag clears the range.
      setRanges((before) => ({ ...before, [key]: range[1] - range[0] < 4 ? null : range }));
    };
    event.preventDefault();
    reach.setPointerCapture(pointerId);
    move(event);
    reach.addEventListener("pointermove", move);
    reach.addEventListener("pointerup", () => reach.removeEventListener("pointermove", move), { once: true });
  };
  const colours = rankColours(items, target);
  const kept = items.filter(within);
  const names = `${kept.slice(0, 8).map(({ label }) => label).join(", ")}${kept.length > 8 ? ", …" : ""}`;
  const line = (item) => {
    const known = axes.filter(({ column }) => isKnown(item.values[column.key]));
    const points = known.map(({ column, left, scale }) => [left, scale.at(item.values[column.key])]);
    const path = `M${points.map((point) => point.map((number) => number.toFixed(1)).join(" ")).join("L")}`;
    const text = `${item.label}: ${target.title} ${formatValue(item.values[target.key], target.kind)}`;
    return html`<a href=${item.link} class="parallel-line ${kept.includes(item) ? "" : "outside"}" aria-label=${text}>
      <path class="reach" d=${path} />
      <path class="mark" d=${path} style=${{ stroke: colours.get(item.values[target.key]) ?? "var(--dim)" }} />
      <title>${text}</title>
    </a>`;
  };
  const drawnAxis = (axis) => html`<${Axis} ...${axis} range=${ranges[axis.column.key]} drag=${drag} />`;
  return html`<section class="parallel">
    <p class="chart-note">Drag along an axis to keep the trials within a range; click it to clear.</p>
    <div class="plot wide">
      <svg ref=${svg} viewBox="0 0 ${width} ${TALL}" role="group" aria-label="Parallel coordinates">
        ${items.map(line)} ${axes.map(drawnAxis)}
      </svg>
    </div>
    <p class="chart-note" role="status">
      ${Object.values(ranges).some(Boolean) && `${kept.length} of ${items.length}: ${names}`}
    </p>
  </section>`;
}

function Axis({ column, left, scale, range, drag }) {
  const [from, to] = range ?? [0, 0];
  return html`<g>
    <text class="axis" x=${left} y=${TOP - 30} text-anchor="middle">${column.title}</text>
    ${scale.logarithmic && html`<text x=${left} y=${TOP - 15} text-anchor="middle">logarithmic</text>`}
    <line class="axis-line" x1=${left} x2=${left} y1=${TOP} y2=${TALL - BOTTOM} />
    ${scale.ticks.map(({ place, text }) => html`<text class="on-axis" x=${left + 7} y=${place + 4}>${text}</text>`)}
    <rect class="brush" x=${left - 9} width="18" y=${from} height=${to - from} />
    <rect class="axis-reach" x=${left - 22} width="44" y=${TOP - 8} height=${TALL - TOP - BOTTOM + 16}
      onPointerDown=${(event) => drag(event, column.key)} />
  </g>`;
}

function parallelScale(items, { key, kind, parameter }) {
  const values = items.map((item) => item.values[key]).filter(isKnown);
  // The values of a setting that has few are more readable than round numbers between them.
  const few = parameter && new Set(values).size <= 6;
  const scale = values.every(isNumber) && !few ? numberScale : textScale;
  return scale(values, TALL - BOTTOM, TOP, kind);
}

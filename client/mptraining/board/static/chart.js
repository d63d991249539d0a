// One chart of curves on uPlot: every curve has its own x values (uPlot's mode 2), so that runs need no common steps.

import { channel } from "./data.js";
import { formatTick, formatValue, formatX } from "./format.js";
import { logarithmicTicks, nearestIndex, paddedRange, timeTicks, valueRange } from "./numbers.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./ui.js";

const CHART_HEIGHT = 220;
// Below that many points each is drawn as a dot, too.
const SPARSE = 25;
const MOST_VALUES = 8;

/** What charts share: the cursor, the highlighted run, and `zoomTo`, which is called with [from, to] or null. */
export class ChartGroup {
  changed = channel();
  cursor = { x: null, chart: null, height: null };
  near = null;
  zoomTo = () => {};

  /** Show the cursor at `x`; `chart` is the one under the pointer or with the focus, `height` the pointer's there. */
  moveCursor(x, chart = null, height = null) {
    this.cursor = { x, chart, height };
    if (x === null) this.near = null;
    this.changed.tell();
  }

  /** Draw one run strongly and the others weakly; null: all alike. */
  highlight(id) {
    if (this.near === id) return;
    this.near = id;
    this.changed.tell();
  }
}

/** Render with the present state of the group. */
export function useGroup(group) {
  const [, render] = useState(0);
  useEffect(() => group.changed.listen(() => render((count) => count + 1)), [group]);
}

/** A figure of `curves`: [{id, label, colour, dash, faint, x, y}]; `range` is the zoom, or null. */
export function Chart({ title, curves, unit, xKind, scale, cut, range, group, dark, figure }) {
  const body = useRef();
  const [plot, setPlot] = useState(null);
  const [width, setWidth] = useState(0);
  const solid = curves.filter(({ faint }) => !faint);
  const vertical = verticalAxis(solid, scale, cut);
  const horizontal = range ?? horizontalRange(curves);
  useLayoutEffect(() => {
    const resized = new ResizeObserver(() => setWidth(body.current.clientWidth));
    resized.observe(body.current);
    return () => resized.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (!width || !solid.some(({ x }) => x.length)) return undefined;
    const shown = { unit, xKind, width, vertical, horizontal, group, figure: figure.current };
    const options = plotOptions(curves, shown);
    const drawn = new window.uPlot(options, [null, ...curves.map(({ x, y }) => [x, y])], body.current);
    setPlot(drawn);
    return () => {
      setPlot(null);
      drawn.destroy();
    };
  }, [curves, width, scale, cut, dark, ...horizontal]);
  useEffect(() => {
    if (!plot) return undefined;
    let before = null;
    return group.changed.listen(() => {
      if (before === group.near) return;
      before = group.near;
      curves.forEach((curve, at) => Object.assign(plot.series[at + 1], emphasis(curve, curves.length, group.near)));
      plot.redraw(false);
    });
  }, [plot]);
  const key = (event) => moveByKey(event, group, figure.current, horizontal);
  const points = Math.max(0, ...curves.map(({ x }) => x.length));
  return html`<figure class="chart" ref=${figure} tabindex="0" role="group" aria-label=${described(title, solid, unit)}
      aria-keyshortcuts="ArrowLeft ArrowRight + - 0" data-points=${points} onKeyDown=${key}
      onBlur=${() => group.moveCursor(null)}>
    <figcaption><span class="chart-title">${title}</span></figcaption>
    <div class="chart-body ${points ? "" : "without-points"}" ref=${body}></div>
    <p class="chart-note">${note(vertical, unit)}</p>
    ${plot && html`<${Readout} ...${{ plot, curves: solid, unit, xKind, group, figure }} />`}
  </figure>`;
}

function moveByKey(event, group, figure, [low, high]) {
  const step = (high - low) / (event.shiftKey ? 10 : 60);
  const at = group.cursor.x ?? (low + high) / 2;
  const moves = { ArrowLeft: at - step, ArrowRight: at + step, Home: low, End: high };
  const zooms = { "+": 0.25, "=": 0.25, "-": 1 };
  if (event.key in moves) group.moveCursor(Math.min(high, Math.max(low, moves[event.key])), figure);
  else if (event.key in zooms) group.zoomTo([-1, 1].map((side) => at + side * (high - low) * zooms[event.key]));
  else if (event.key === "0" || event.key === "Escape") group.zoomTo(null);
  else return;
  event.preventDefault();
}

function verticalAxis(curves, scale, cut) {
  const values = curves.map(({ y }) => y);
  const range = valueRange(values, cut);
  // A logarithmic axis tells more if the values span a factor of 30.
  const wanted = scale === "log" ? range.high > 0 : scale === "auto" && range.low > 0;
  const logarithmic = wanted && (scale === "log" || range.high / range.low >= 30);
  if (!logarithmic) return { ...range, logarithmic, ends: paddedRange(range.low, range.high) };
  const positive = (low, y) => (y > 0 && y < low ? y : low);
  const low = range.low > 0 ? range.low : values.flat().reduce(positive, range.high);
  return { ...range, logarithmic, ends: [low / 1.15, range.high * 1.15] };
}

function note({ hidden, extreme, logarithmic }, unit) {
  const count = hidden === 1 ? "1 point lies" : `${hidden.toLocaleString("en")} points lie`;
  const outside = hidden ? `${count} outside (farthest: ${formatValue(extreme, unit)})` : "";
  return [outside, logarithmic ? "logarithmic axis" : ""].filter(Boolean).join(" · ");
}

/** Return the ends of x with a little room, so that dots at the ends are not cut. */
function horizontalRange(curves) {
  const drawn = curves.filter(({ x }) => x.length);
  if (!drawn.length) return [0, 1];
  const low = Math.min(...drawn.map(({ x }) => x[0]));
  const high = Math.max(...drawn.map(({ x }) => x[x.length - 1]));
  const margin = low === high ? 1 : (high - low) * 0.012;
  return [low - margin, high + margin];
}

/** Return the curves in words: for screen readers. */
function described(title, curves, unit) {
  const last = ({ label, y }) => `${label} ends at ${formatValue(y.findLast((value) => value !== null), unit)}`;
  return `${title}: ${curves.slice(0, 12).map(last).join(", ") || "no points yet"}`;
}

function plotOptions(curves, { unit, xKind, width, vertical, horizontal, group, figure }) {
  const grid = { stroke: getComputedStyle(figure).borderTopColor, width: 1 };
  const { color: ink } = getComputedStyle(figure.querySelector(".chart-note"));
  const axis = { stroke: ink, grid, ticks: { ...grid, size: 4 }, font: "11px system-ui, sans-serif" };
  const times = { splits: (_, at, low, high) => timeTicks(low, high, width / 90) };
  const powers = { splits: (_, at, low, high) => logarithmicTicks(low, high, 6), filter: (_, ticks) => ticks };
  const texts = (kind) => (_, ticks) => ticks.map((tick) => formatTick(tick, kind));
  const longest = (labels) => Math.max(0, ...(labels ?? []).map((label) => label?.length ?? 0));
  const across = { ...axis, size: 28, space: 70, values: texts(xKind) };
  const room = (_, labels) => Math.max(44, 14 + 6.4 * longest(labels));
  const upwards = { ...axis, size: room, space: 34, values: texts(unit) };
  const select = (plot) => {
    const { left, width: selected } = plot.select;
    if (selected >= 6) group.zoomTo([plot.posToVal(left, "x"), plot.posToVal(left + selected, "x")]);
  };
  return {
    mode: 2,
    width,
    height: CHART_HEIGHT,
    legend: { show: false },
    padding: [8, 10, 0, 0],
    scales: {
      x: { time: false, auto: false, range: () => horizontal },
      y: { auto: false, distr: vertical.logarithmic ? 3 : 1, range: () => vertical.ends },
    },
    axes: [{ ...across, ...(xKind === "seconds" && times) }, { ...upwards, ...(vertical.logarithmic && powers) }],
    series: [{}, ...curves.map((curve) => seriesOptions(curve, curves.length, group.near))],
    cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false }, dataIdx: () => null },
    hooks: { setSelect: [select] },
  };
}

function seriesOptions(curve, count, near) {
  const drawDots = window.uPlot.paths.points();
  const dots = (plot, at) => drawDots(plot, at, 0, curve.x.length - 1);
  return {
    stroke: curve.colour,
    dash: curve.dash,
    points: { show: () => !curve.faint && curve.x.length <= SPARSE, size: 5, fill: curve.colour, paths: dots },
    spanGaps: false,
    paths: window.uPlot.paths.linear(),
    facets: [{ scale: "x", auto: false }, { scale: "y", auto: false }],
    ...emphasis(curve, count, near),
  };
}

function emphasis({ id, faint }, count, near) {
  const width = faint ? 1 : count <= 12 ? 1.75 : 1.25;
  const alpha = faint ? 0.28 : 1;
  if (near === null) return { width, alpha };
  return near === id ? { width: 1.5 * width, alpha } : { width, alpha: 0.18 * alpha };
}

/** Values at the cursor: a line and dots in all charts of the group, and a list in the one that is pointed at. */
function Readout({ plot, curves, unit, xKind, group, figure }) {
  useGroup(group);
  useLayoutEffect(() => {
    const point = (event) => {
      const area = plot.over.getBoundingClientRect();
      group.moveCursor(plot.posToVal(event.clientX - area.left, "x"), figure.current, event.clientY - area.top);
    };
    const mouse = (event) => event.pointerType === "mouse";
    plot.over.addEventListener("pointermove", point);
    plot.over.addEventListener("pointerdown", (event) => !mouse(event) && point(event));
    // A finger leaves when it is lifted: the values stay to be read.
    plot.over.addEventListener("pointerleave", (event) => mouse(event) && group.moveCursor(null));
    plot.over.addEventListener("dblclick", () => group.zoomTo(null));
  }, [plot]);
  const { x, chart, height } = group.cursor;
  const listed = chart === figure.current;
  const values = x === null ? [] : curves.map((curve) => valueAt(plot, curve, x)).filter(Boolean);
  const distance = ({ top }) => (height === null ? top : Math.abs(top - height));
  const nearest = listed ? [...values].sort((one, other) => distance(one) - distance(other)) : [];
  const near = listed && height !== null && values.length > 1 ? nearest[0].curve.id : null;
  useEffect(() => {
    if (listed) group.highlight(near);
  }, [listed, near]);
  if (x === null) return null;
  const { offsetLeft: left, offsetTop: top, clientWidth: width, clientHeight: tall } = plot.over;
  const place = plot.valToPos(x, "x");
  const dot = ({ curve, left: at, top: dotTop }) =>
    html`<i style=${{ left: `${at}px`, top: `${dotTop}px`, background: curve.colour }}></i>`;
  const body = plot.root.parentElement;
  const area = { left: `${body.offsetLeft + left}px`, top: `${body.offsetTop + top}px`, width: `${width}px` };
  return html`
    <div class="cursor" style=${{ ...area, height: `${tall}px` }}>
      <div class="cursor-line" style=${{ left: `${place}px` }}></div>
      ${values.map(dot)}
    </div>
    ${nearest.length > 0 && html`<${ValueList} ...${{ x, body, nearest, unit, xKind }} place=${left + place} />`}
  `;
}

function valueAt(plot, curve, x) {
  const at = nearestIndex(curve.x, curve.y, x);
  if (at < 0) return null;
  return { curve, y: curve.y[at], left: plot.valToPos(curve.x[at], "x"), top: plot.valToPos(curve.y[at], "y") };
}

function ValueList({ x, place, body, nearest, unit, xKind }) {
  const rows = nearest.slice(0, MOST_VALUES).sort((one, other) => one.top - other.top);
  const more = nearest.length - rows.length;
  // On the side of the cursor where there is more room; the figure has the same margin on both sides of its body.
  const onTheLeft = place > body.clientWidth / 2;
  const distance = onTheLeft ? body.clientWidth - place : place;
  const side = { [onTheLeft ? "right" : "left"]: `${body.offsetLeft + distance + 14}px` };
  const row = (value) => html`<span class=${value === nearest[0] && nearest.length > 1 ? "row nearest" : "row"}>
    <i class="swatch" style=${{ "--c": value.curve.colour }}></i>
    <span class="name">${value.curve.label}</span>
    <b>${formatValue(value.y, unit)}</b>
  </span>`;
  return html`<div class="readout" role="status" style=${side}>
    <strong>${formatX(x, xKind)}</strong>
    ${rows.map(row)} ${more > 0 && html`<span class="row">and ${more} more</span>`}
  </div>`;
}

// Charts of one or several runs that share cursor, zoom and settings; each loads its points when it comes into view.

import { Chart } from "./chart.js";
import { offline } from "./data.js";
import { runColour } from "./format.js";
import { merged, smoothed } from "./numbers.js";
import { Choice, html, useAnswer, useEffect, useKept, useMemo, useRef, useState } from "./ui.js";

const USUAL = { x: "step", smooth: 0, scale: "auto", cut: true };
// Points of a curve: two for each of these pixels, as on an exported page.
const PIXELS = 600;

/** Sections of charts, [{title, charts: [{title, names}]}], of `runs`: [{id, label, colour, dash}]. */
export function ChartPanel({ sections, runs, group, dark }) {
  const [settings, setSettings] = useKept("charts", USUAL);
  const [zoom, setZoom] = useState(null);
  group.zoomTo = setZoom;
  const set = (changed) => {
    if ("x" in changed) setZoom(null);
    setSettings({ ...settings, ...changed });
  };
  const chart = ({ title, names }) => {
    const properties = { title, names, runs, settings, zoom, group, dark };
    return html`<${LoadedChart} key=${names.join()} ...${properties} />`;
  };
  const section = ({ title, charts }) =>
    html`<section key=${title}><h3>${title}</h3><div class="charts">${charts.map(chart)}</div></section>`;
  return html`
    <div class="controls" role="group" aria-label="Charts">
      <${Choice} title="Across" options=${[["step", "step"], ["epoch", "epoch"], ["seconds", "time"]]}
        chosen=${settings.x} change=${(x) => set({ x })} />
      <${Choice} title="Upwards" options=${[["auto", "auto"], ["linear", "linear"], ["log", "log"]]}
        chosen=${settings.scale} change=${(scale) => set({ scale })} />
      <label class="inline">Smoothing
        <input type="range" min="0" max="0.99" step="0.01" value=${settings.smooth} aria-label="Smoothing"
          onInput=${(event) => set({ smooth: Number(event.target.value) })} />
        <output>${settings.smooth.toFixed(2)}</output>
      </label>
      <label class="inline" title="A note below the chart counts the values that lie far from those of most runs">
        <input type="checkbox" checked=${settings.cut} onChange=${(event) => set({ cut: event.target.checked })} />
        cut outliers
      </label>
      ${zoom && html`<button type="button" onClick=${() => setZoom(null)}>Reset zoom</button>`}
    </div>
    ${sections.map(section)}`;
}

function LoadedChart({ title, names, runs, settings, zoom, group, dark }) {
  const figure = useRef();
  const visible = useVisible(figure);
  const { x, smooth, scale, cut } = settings;
  const ids = runs.map(({ id }) => id);
  const parameters = { run: ids, name: names, x, pixels: PIXELS };
  const concerns = (changed) => changed.some((id) => ids.includes(id));
  const path = visible && runs.length ? "/api/series" : null;
  const [whole, error] = useAnswer(path, { parameters, concerns });
  const part = { ...parameters, from: zoom?.[0], to: zoom?.[1] };
  const [detail] = useAnswer(zoom && !offline ? path : null, { parameters: part, concerns });
  const curves = useMemo(
    () => curvesOf(whole?.charts ?? [], zoom ? detail?.charts : null, runs, smooth),
    [whole, detail, zoom, runs, smooth],
  );
  const { unit = "number", x: xKind = x } = whole?.charts[0] ?? {};
  const properties = { title: error ? `${title}: ${error.message}` : title, curves, unit, xKind, scale, cut };
  return html`<${Chart} ...${properties} range=${zoom} group=${group} dark=${dark} figure=${figure} />`;
}

/** Return whether the element is in view, or was so close to it that its content is worth loading. */
function useVisible(element) {
  const [visible, setVisible] = useState(false);
  useEffect(() => {
    const watch = (entries) => setVisible(entries.at(-1).isIntersecting);
    const observer = new IntersectionObserver(watch, { rootMargin: "300px" });
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return visible;
}

/** Return the curves: of one run each series has a colour, of several each run; what follows the first is dashed. */
function curvesOf(charts, details, runs, smooth) {
  const single = runs.length === 1;
  const curves = charts.flatMap(({ name, label: title, series }, at) =>
    series.flatMap((points) => {
      const run = runs.find(({ id }) => id === points.run);
      if (!run || !points.x.length) return [];
      // The part in view of another axis is that of an answer before.
      const same = details?.[at]?.x === charts[at].x;
      const { x, y, index } = merged(points, same && details[at].series.find((part) => part.run === points.run));
      const label = single ? title : `${run.label}${at ? ` (${title})` : ""}`;
      const colour = single && at ? runColour(at) : run.colour;
      return [{ id: single ? name : run.id, label, colour, dash: at ? [6, 4] : run.dash, faint: false, x, y, index }];
    }),
  );
  if (!smooth) return curves;
  // The unsmoothed curve stays behind the smoothed one.
  const faint = curves.map((curve) => ({ ...curve, faint: true }));
  return [...faint, ...curves.map((curve) => ({ ...curve, y: smoothed(curve.y, smooth, curve.index) }))];
}

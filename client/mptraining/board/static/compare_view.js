// The view that compares runs: their curves, or two of their columns as a scatter, beside one list of the runs.

import { ChartGroup, useGroup } from "./chart.js";
import { ChartPanel } from "./charts.js";
import { formatValue, runColour, runDash } from "./format.js";
import { Scatter } from "./plots.js";
import { Badge, Choice, Empty, Missing, html, runLink, useAnswer, useMemo, useState } from "./ui.js";

const MOST_COMPARED = 200;
// Above that many runs, training and validation have charts of their own.
const MOST_SHARED = 3;
const NOTHING = html`<${Empty} title="Nothing to compare"><a href="#/runs">Select runs in the table</a><//>`;
const LOSSES = ["last:val_loss", "last:loss", "best:val_loss", "best:loss"];

export function CompareView({ parameters, setParameters, dark }) {
  const wanted = parameters.get("runs")?.split(",").filter(Boolean) ?? [];
  const concerns = (ids) => !wanted.length || ids.some((id) => wanted.includes(id));
  const [data, error] = useAnswer("/api/runs", { concerns });
  const [off, setOff] = useState([]);
  const group = useMemo(() => new ChartGroup(), []);
  const chosen = (data?.runs ?? []).filter(({ id }) => !wanted.length || wanted.includes(id));
  const runs = useMemo(() => {
    const style = (at) => ({ colour: runColour(at, dark), dash: runDash(at) });
    const styled = (run, at) => ({ ...run, ...style(at), label: run.name, link: runLink(run) });
    return chosen.slice(0, MOST_COMPARED).map(styled);
  }, [data, dark, wanted.join()]);
  const drawn = useMemo(() => runs.filter(({ id }) => !off.includes(id)), [runs, off]);
  if (!data) return html`<${Missing} error=${error} />`;
  if (!runs.length) return NOTHING;
  const tab = parameters.get("tab") === "scatter" ? "scatter" : "curves";
  const sections = data.charts[runs.length <= MOST_SHARED ? "few" : "many"];
  const paired = sections[0]?.charts.some(({ names }) => names.length > 1);
  const axes = { x: parameters.get("x"), y: parameters.get("y") };
  const [loss] = LOSSES.flatMap((wanted) => data.columns.filter(({ key }) => key === wanted));
  const usual = { x: "totalSeconds", y: loss?.key };
  const scatter = { items: drawn, columns: data.columns, axes, usual, choose: setParameters };
  return html`
    <div class="compare-head">
      <h1>Compare ${runs.length === 1 ? "1 run" : `${runs.length} runs`}</h1>
      <${Choice} title="Show" hidden options=${[["curves", "Curves"], ["scatter", "Scatter"]]} chosen=${tab}
        change=${(next) => setParameters({ tab: next })} />
    </div>
    <div class="compare">
      <${Legend} ...${{ runs, off, setOff, group, loss, cutOff: chosen.length - runs.length }} />
      <div class="compare-content">
        ${tab === "scatter" && html`<${Scatter} ...${scatter} />`}
        ${tab === "curves" && paired && html`<p class="chart-note">Solid: training. Dashed: validation.</p>`}
        ${tab === "curves" && html`<${ChartPanel} ...${{ sections, runs: drawn, group, dark }} />`}
      </div>
    </div>`;
}

function Legend({ runs, off, setOff, group, loss, cutOff }) {
  useGroup(group);
  const row = (run) => {
    const toggle = ({ target }) => setOff(target.checked ? off.filter((id) => id !== run.id) : [...off, run.id]);
    return html`<li key=${run.id} class=${group.near === run.id ? "near" : ""}
        onPointerEnter=${() => group.highlight(run.id)} onPointerLeave=${() => group.highlight(null)}>
      <label><input type="checkbox" checked=${!off.includes(run.id)} onChange=${toggle} aria-label="Draw ${run.name}" />
        <i class="swatch ${run.dash.length ? "dashed" : ""}" style=${{ "--c": run.colour }}></i></label>
      <a href=${run.link} title=${run.folder ?? run.name}>${run.name}</a>
      ${run.state !== "Succeeded" && html`<${Badge} state=${run.state} reason=${run.reason} />`}
      ${loss && html`<b>${formatValue(run.values[loss.key], loss.kind)}</b>`}
    </li>`;
  };
  return html`<aside class="legend" aria-label="Runs in the comparison">
    <div class="legend-head">
      <button type="button" class="quiet" onClick=${() => setOff(off.length ? [] : runs.map(({ id }) => id))}>
        Draw ${off.length ? "all" : "none"}</button>
      <span>${loss?.title}</span>
    </div>
    <ul>${runs.map(row)}</ul>
    ${cutOff > 0 && html`<p class="chart-note">${cutOff} more runs; select fewer in the table.</p>`}
  </aside>`;
}

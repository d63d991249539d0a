// The views of all sweeps and of one: its best trial, its plots, and the table of its trials.

import { Chart, ChartGroup } from "./chart.js";
import { apiPath } from "./data.js";
import { formatSeconds, formatValue } from "./format.js";
import { Parallel, Scatter, rankColours } from "./plots.js";
import { sortRuns } from "./runs_table.js";
import { Badge, Commands, Empty, Facts, Head, Missing, Row, Table, html } from "./ui.js";
import { runLink, useAnswer, useMemo, useRef, useState } from "./ui.js";

const FIRST_COLUMNS = [{ key: "number", title: "trial" }, { key: "state", title: "state" }];
const sweepLink = (id) => `#/sweep/${encodeURIComponent(id)}`;
const NO_SWEEPS = html`<${Empty} title="No sweeps yet">
  <p>A sweep searches the hyperparameters of a job:</p><p><code>mptj run sweep.yaml</code></p><//>`;

export function SweepsView() {
  const [data, error] = useAnswer("/api/sweeps");
  if (!data) return html`<${Missing} error=${error} />`;
  if (!data.sweeps.length) return NO_SWEEPS;
  const row = ({ id, name, folder, state, phase, algorithm, counts, max, best, metric }) => [
    html`<a href=${sweepLink(id)} title=${folder ?? name}>${name}</a>`,
    html`<${Badge} state=${state} text=${phase} />`,
    algorithm,
    `${counts.ended} of ${max}`,
    best && formatValue(best.objective, "number"),
    metric,
  ];
  const heads = ["sweep", "state", "algorithm", "trials", "best", "objective"];
  return html`<h1>Sweeps</h1><${Table} heads=${heads} rows=${data.sweeps.map(row)} numbers=${[3, 4]} />`;
}

export function SweepView({ id, parameters, setParameters, dark }) {
  const [data, error] = useAnswer(apiPath("sweep", id), { concerns: (ids) => ids.includes(id) });
  const [importance] = useAnswer(apiPath("importance", id), { concerns: (ids) => ids.includes(id) });
  const [sort, setSort] = useState(null);
  const trials = useMemo(() => {
    const link = ({ run }) => (run ? runLink({ id: run }) : sweepLink(id));
    const colours = data && rankColours(data.trials, data.objective, dark);
    const colour = ({ values }) => colours.get(values[data.objective.key]);
    return data?.trials.map((trial) => ({ ...trial, label: trial.name, link: link(trial), colour: colour(trial) }));
  }, [data, dark]);
  if (!data) return html`<${Missing} error=${error} />`;
  const { sweep, columns, objective } = data;
  document.title = `${sweep.name} · mptj board`;
  const { counts, best } = sweep;
  const settings = columns.filter(({ parameter }) => parameter);
  const ended = trials.filter(({ values }) => typeof values[objective.key] === "number");
  ended.sort((one, other) => one.ended - other.ended || one.number - other.number);
  const some = ["running", "failed", "stopped"].filter((state) => counts[state]);
  const open = some.map((state) => `${counts[state]} ${state}`).join(", ");
  const facts = [
    [`best ${objective.title}`, best ? formatValue(best.objective, "number") : "none yet"],
    ...settings.map(({ title, key, kind }) => [title, best && formatValue(best.values[key], kind)]),
    ["trials", `${counts.ended} of ${sweep.max}${open && ` (${open})`}`],
    ["algorithm", sweep.algorithm],
    ["time", sweep.seconds === null ? "" : formatSeconds(sweep.seconds)],
  ];
  const shown = [objective, ...columns.filter(({ key }) => key !== objective.key)];
  const order = sort ?? { key: objective.key, descending: objective.better === "higher" };
  const head = (column) => html`<${Head} column=${column} sort=${order} setSort=${setSort} />`;
  const row = (trial) => {
    const item = { ...trial, reason: trial.message, best: trial.number === best?.number ? [objective.key] : [] };
    return html`<${Row} key=${trial.number} ...${{ item, columns: shown, link: trial.run && trial.link }} />`;
  };
  const share = ({ title, share: part }) => [title, formatValue(100 * part, "percent")];
  const axes = { x: parameters.get("x"), y: parameters.get("y") };
  const usual = { x: settings[0]?.key, y: objective.key };
  return html`
    <div class="run-title"><h1>${sweep.name}</h1><${Badge} state=${sweep.state} text=${sweep.phase} /></div>
    <p class="where">${sweep.folder ? html`<code>${sweep.folder}</code>` : `namespace ${sweep.namespace}`}</p>
    ${sweep.message && html`<p class="reason ${sweep.state.toLowerCase()}">${sweep.message}</p>`}
    <${Facts} facts=${facts} />
    <section><h2>Best so far</h2><${BestSoFar} trials=${ended} objective=${objective} dark=${dark} /></section>
    ${ended.length > 1 && html`<section><h2>Parallel coordinates</h2>
      <p class="chart-note">Coloured by ${objective.title}: violet is low, yellow is high.</p>
      <${Parallel} items=${ended} columns=${[...settings, objective]} target=${objective} /></section>
    <section><h2>Scatter</h2>
      <${Scatter} ...${{ items: ended, columns, axes, usual, choose: setParameters }} /></section>`}
    ${importance?.length > 0 && html`<section><h2>Importance</h2>
      <p class="chart-note">How much each parameter decides whether a trial is among the best (Optuna, PED-ANOVA).</p>
      <${Table} heads=${["parameter", "share"]} rows=${importance.map(share)} numbers=${[1]} /></section>`}
    <section><h2>Trials</h2>
      <div class="table-frame"><table class="trials">
        <thead><tr>${[...FIRST_COLUMNS, ...shown].map(head)}</tr></thead>
        <tbody>${sortRuns(trials, order).map(row)}</tbody>
      </table></div></section>
    <${Commands} commands=${sweep.commands} />`;
}

/** The best objective up to and including each trial, in the order in which they ended. */
function BestSoFar({ trials, objective, dark }) {
  const figure = useRef();
  const group = useMemo(() => new ChartGroup(), []);
  const curves = useMemo(() => {
    const y = trials.map(({ values }) => values[objective.key]);
    const pick = objective.better === "higher" ? Math.max : Math.min;
    const best = y.map((_, at) => pick(...y.slice(0, at + 1)));
    const x = y.map((_, at) => at + 1);
    return [{ id: "best", label: `best ${objective.title}`, colour: "#888", dash: [], faint: false, x, y: best }];
  }, [trials]);
  const axes = { unit: "number", xKind: "trial", scale: "linear", cut: false, range: null };
  return html`<${Chart} title=${objective.title} ...${{ curves, ...axes, group, dark, figure }} />`;
}

// The view of all runs: a table to sort, filter and select from.

import { OWN, isShown, parseFilter, sortRuns } from "./runs_table.js";
import { Empty, Head, Missing, Row, html, runLink, useAnswer, useKept, useMemo, useState } from "./ui.js";

const FIRST_ROWS = 200;

export function RunsView() {
  const [data, error] = useAnswer("/api/runs");
  const [sort, setSort] = useKept("sort", { key: "startTime", descending: true });
  const [filter, setFilter] = useKept("filter", "");
  const [selected, setSelected] = useKept("selected", []);
  const [most, setMost] = useState(FIRST_ROWS);
  const { runs = [], columns = [], sources = [] } = data ?? {};
  const parsed = useMemo(() => parseFilter(filter, columns), [filter, data]);
  const shown = useMemo(() => sortRuns(runs.filter(parsed.test ?? (() => true)), sort), [parsed, sort]);
  const visible = columns.filter(({ key }) => isShown(key));
  if (!data) return html`<${Missing} error=${error} />`;
  const warning = ({ where, problem }) => html`<p class="warning" role="alert"><b>${where}</b> ${problem}</p>`;
  const warnings = sources.filter(({ problem }) => problem).map(warning);
  if (!runs.length) {
    const places = sources.map(({ where }) => where).join(", ");
    return html`${warnings}<${Empty} title="No runs yet">
      <p>The board watches ${places}. A run appears here with its first event. Start a job, for example:</p>
      <p><code>mptj run job.yaml</code></p><//>`;
  }
  const chosen = shown.filter(({ id }) => selected.includes(id));
  const select = (ids, on) => setSelected([...selected.filter((id) => !ids.includes(id)), ...(on ? ids : [])]);
  const compared = chosen.length ? chosen : shown.slice(0, FIRST_ROWS);
  const which = chosen.length
    ? `${chosen.length} selected`
    : `${compared.length < shown.length ? "first" : "all"} ${compared.length}`;
  const link = `#/compare?runs=${compared.map(({ id }) => encodeURIComponent(id)).join()}`;
  const all = chosen.length === shown.length;
  const more = shown.length - most;
  const row = (run) => {
    const on = chosen.includes(run);
    const properties = { key: run.id, item: run, columns: visible, link: runLink(run), "data-run": run.id };
    return html`<${Row} ...${properties} class=${on ? "chosen" : ""}>
      <td class="check"><input type="checkbox" aria-label="Select ${run.name}" checked=${on}
        onChange=${(event) => select([run.id], event.target.checked)} /></td><//>`;
  };
  const head = (column) => html`<${Head} column=${column} sort=${sort} setSort=${setSort} />`;
  return html`
    <h1 class="visually-hidden">Runs</h1>
    <div class="toolbar">
      <input type="search" id="filter" placeholder="Filter: words, /regex/, policy=float32, loss<0.5" value=${filter}
        aria-label="Filter runs" aria-describedby="filter-problem" aria-invalid=${String(Boolean(parsed.error))}
        onInput=${(event) => setFilter(event.target.value)} />
      <span class="count" id="count" role="status">
        ${shown.length < runs.length && `${shown.length} of `}${runs.length} runs
      </span>
      <a class="button primary" id="compare" href=${link}>Compare ${which}</a>
    </div>
    <span class="problem" id="filter-problem" role="status">${parsed.error}</span>
    ${warnings}
    <div class="table-frame" onKeyDown=${(event) => moved(event, chosen, select)}>
      <table class="runs">
        <caption class="visually-hidden">Runs</caption>
        <thead><tr>
          <th class="check"><input type="checkbox" aria-label="Select all shown runs" checked=${all}
            indeterminate=${chosen.length > 0 && !all} onChange=${() => select(shown.map(({ id }) => id), !all)} /></th>
          ${[...OWN, ...visible].map(head)}
        </tr></thead>
        <tbody>${shown.slice(0, most).map(row)}</tbody>
      </table>
      ${more > 0 && html`<button class="more" onClick=${() => setMost(Infinity)}>Show ${more} more</button>`}
      ${!shown.length && html`<p class="empty">No run matches.
        <button onClick=${() => setFilter("")}>Clear the filter</button></p>`}
    </div>`;
}

const MOVES = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" };
Object.assign(MOVES, { j: MOVES.ArrowDown, k: MOVES.ArrowUp });

/** Arrows move between rows, Space selects; Enter opens, as the name is a link. */
function moved(event, chosen, select) {
  const row = event.target.closest("[data-run]");
  const selects = event.key === "x" || (event.key === " " && event.target.type !== "checkbox");
  if (!row || !(selects || event.key in MOVES)) return;
  event.preventDefault();
  if (selects) select([row.dataset.run], !chosen.some(({ id }) => id === row.dataset.run));
  else row[MOVES[event.key]]?.querySelector("a").focus();
}

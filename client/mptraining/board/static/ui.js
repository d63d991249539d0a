// Preact with htm, the hooks of the board, and the elements that several views show.

import { changes, load } from "./data.js";
import { formatSeconds, formatValue } from "./format.js";

export const { html, render, useEffect, useLayoutEffect, useMemo, useRef, useState } = window.htmPreact;

const PREFIX = "mptj-board.";

/** `useState` whose value, JSON, the browser keeps under `name`. */
export function useKept(name, otherwise) {
  const [value, setValue] = useState(() => {
    try {
      return JSON.parse(localStorage.getItem(PREFIX + name)) ?? otherwise;
    } catch {
      return otherwise;
    }
  });
  const change = (next) => {
    setValue(next);
    try {
      localStorage.setItem(PREFIX + name, JSON.stringify(next));
    } catch {
      // A page opened from a file, or a full store: the choice lasts until the page is closed.
    }
  };
  return [value, change];
}

/**
 * Return [data, error] of `path`, loaded again after changes for which `concerns` returns true. Without a path nothing
 * is loaded. Until the answer for other parameters comes, the data is that for those before.
 */
export function useAnswer(path, { parameters = {}, concerns = () => true, every = 0 } = {}) {
  const [answer, setAnswer] = useState([null, null]);
  useEffect(() => {
    if (!path) return undefined;
    let closed = false;
    const read = coalesced(async () => {
      try {
        const data = await load(path, parameters);
        if (!closed) setAnswer([data, null]);
      } catch (error) {
        if (error.status === undefined) throw error;
        // While the server is away the page keeps what it shows.
        if (!closed) setAnswer(([data]) => [error.status ? null : data, error]);
      }
    }, 250);
    read(0);
    const stop = changes.listen((ids) => (ids === null || concerns(ids)) && read());
    const timer = every && setInterval(read, every);
    return () => {
      closed = true;
      stop();
      clearInterval(timer);
    };
  }, [path, JSON.stringify(parameters)]);
  return answer;
}

/** Return a function that calls `action` once for several calls within `milliseconds`, and never twice at a time. */
export function coalesced(action, milliseconds) {
  let [waiting, running] = [false, Promise.resolve()];
  return (delay = milliseconds) => {
    if (waiting) return;
    waiting = true;
    setTimeout(async () => {
      await running;
      waiting = false;
      running = action();
    }, delay);
  };
}

/** Return the link to a run's page. */
export function runLink(run) {
  return `#/run/${encodeURIComponent(run.id)}`;
}

export function Badge({ state, text = state, reason }) {
  return html`<span class="badge ${state.toLowerCase()}" title=${reason}>${text}</span>`;
}

/** The progress of a run that is under way, with the time left. */
export function Progress({ run }) {
  const { progress } = run;
  if (!progress || ["Succeeded", "Failed", "Stopped"].includes(run.state)) return null;
  const left = run.state === "Running" && progress.remainingSeconds ? formatSeconds(progress.remainingSeconds) : "";
  const share = progress.percent ?? (progress.totalSteps ? (100 * progress.step) / progress.totalSteps : null);
  const text = share === null ? `step ${progress.step.toLocaleString("en")}` : `${Math.floor(share)}%`;
  return html`<span class="progress">
    ${share !== null && html`<progress max="100" value=${share} aria-label="progress of ${run.name}" />`}
    <span class="progress-text">${left ? `${text} · ${left} left` : text}</span>
  </span>`;
}

/** A group of buttons of which one is pressed; `options` are pairs of value and text. */
export function Choice({ title, options, chosen, change, hidden = false }) {
  const button = ([value, text]) => {
    const press = () => change(value);
    return html`<button type="button" aria-pressed=${String(value === chosen)} onClick=${press}>${text}</button>`;
  };
  return html`<span class="choice" role="group" aria-label=${title}>
    ${!hidden && html`<span class="choice-title" aria-hidden="true">${title}</span>`} ${options.map(button)}
  </span>`;
}

/** A view or section without content: what is missing and what to do. */
export function Empty({ title, children }) {
  return html`<div class="empty"><h2>${title}</h2>${children}</div>`;
}

/** The answer that is not there yet, or the error instead of it. */
export function Missing({ error }) {
  if (!error) return html`<p class="loading">Loading…</p>`;
  return html`<${Empty} title="This cannot be shown"><p>${error.message}</p><p><a href="#/runs">All runs</a></p><//>`;
}

/** Names with their values; those without a value are left out. */
export function Facts({ facts }) {
  const known = facts.filter(([, value]) => value !== null && value !== undefined && value !== "");
  const fact = ([title, value]) => html`<div><dt>${title}</dt><dd>${value}</dd></div>`;
  return known.length > 0 && html`<dl class="facts">${known.map(fact)}</dl>`;
}

/** A table; `numbers` are the indices of right-aligned columns, `classes` those of its rows. */
export function Table({ heads, rows, numbers = [], classes = [] }) {
  const kind = (at) => (numbers.includes(at) ? "number" : "");
  const head = (title, at) => html`<th scope="col" class=${kind(at)}>${title}</th>`;
  const cells = (row) => row.map((cell, at) => html`<td class=${kind(at)}>${cell ?? "–"}</td>`);
  return html`<div class="table-frame"><table>
    <thead><tr>${heads.map(head)}</tr></thead>
    <tbody>${rows.map((row, index) => html`<tr class=${classes[index]}>${cells(row)}</tr>`)}</tbody>
  </table></div>`;
}

/** The title of a column by which a click sorts; `sort` is {key, descending}. */
export function Head({ column: { key, title, kind = "text", better }, sort, setSort }) {
  const active = sort.key === key;
  const order = active ? (sort.descending ? "descending" : "ascending") : null;
  const press = () => setSort({ key, descending: active ? !sort.descending : better === "higher" || kind === "time" });
  return html`<th scope="col" aria-sort=${order} class="${kind === "text" ? "" : "number"} ${key}">
    <button type="button" data-sort=${key} onClick=${press}>${title}
      <span aria-hidden="true">${active && (sort.descending ? " ↓" : " ↑")}</span></button>
  </th>`;
}

/** A row of a table of runs or trials: name, state, and the values of the columns; `children` come before. */
export function Row({ item, columns, link, children, ...properties }) {
  const { name, folder, values, state, shownState, reason, best } = item;
  const outcome = values.outcome !== state && values.outcome;
  const cell = ({ key, kind, title }) => {
    const classes = `${typeof values[key] === "string" ? "" : "number"} ${best.includes(key) ? "best" : ""}`;
    const hint = best.includes(key) ? `best ${title}` : null;
    return html`<td class=${classes} title=${hint}>${formatValue(values[key], kind)}</td>`;
  };
  return html`<tr ...${properties}>
    ${children}
    <th scope="row" class="name">${link ? html`<a href=${link} title=${folder ?? name}>${name}</a>` : name}</th>
    <td class="state"><${Badge} state=${state} text=${shownState} reason=${reason} />
      ${outcome && html`<span class="outcome" title=${reason}>${outcome}</span>`}
      <${Progress} run=${item} /></td>
    ${columns.map(cell)}
  </tr>`;
}

/** A section of a page that opens and closes. */
export function Part({ id, title, count, open = false, children }) {
  return html`<details id=${id} class="part" open=${open}>
    <summary><h2>${title}</h2>${count > 0 && html`<span class="count">${count}</span>`}</summary>
    ${children}
  </details>`;
}

/** Commands to copy: a click selects one. */
export function Commands({ commands }) {
  if (!commands.length) return null;
  const row = ({ title, command }) => html`<li>${title}<code class="command">${command}</code></li>`;
  return html`<${Part} id="commands" title="Commands" open><ul class="commands">${commands.map(row)}</ul><//>`;
}

// One row of the table of runs, and the badge and progress that other views show, too.

import { h } from "../dom.js";
import { formatSeconds, formatValue } from "../format.js";

/** Return the row of a run: check box, name, state with progress, and the values of `columns`. */
export function runRow(run, columns, view) {
  const chosen = view.selected.has(run.id);
  const box = h("input", { type: "checkbox", "aria-label": `Select ${run.name}`, checked: chosen, onchange: (event) => view.select([run.id], event.target.checked) });
  const hidden = view.hiddenRuns.has(run.id);
  return h(
    "tr",
    { "data-run": run.id, class: `${chosen ? "chosen" : ""} ${hidden ? "hidden-run" : ""}` },
    h("td", { class: "check" }, box),
    h("th", { scope: "row", class: "name" }, h("a", { href: runLink(run), title: run.folder ?? run.name }, run.name)),
    h("td", { class: "state" }, stateBadge(run), outcomeOf(run), progressBar(run)),
    columns.map((column) => cell(run.values[column.key], column, run.best.includes(column.key))),
  );
}

/** Return the link to a run's page, or to its job's if it has no run folder; a trial brings its own. */
export function runLink(run) {
  if (run.link) return run.link;
  return run.folder || !run.job ? `#/run/${encodeURIComponent(run.id)}` : jobLink(run.job);
}

/** Return the link to the page of a job on a cluster. */
export function jobLink(job) {
  return `#/job/${encodeURIComponent(job.namespace)}/${encodeURIComponent(job.name)}`;
}

function cell(value, { kind, title }, isBest) {
  const number = kind !== "text";
  return h("td", { class: `${number ? "number" : ""} ${isBest ? "best" : ""}`, title: isBest ? `best ${title}` : null }, formatValue(value, kind));
}

/** Return the outcome where it says more than the state: Diverged, Preempted. */
function outcomeOf(run) {
  const outcome = run.values.outcome;
  return outcome && outcome !== run.state ? h("span", { class: "outcome", title: run.reason ?? null }, outcome) : "";
}

/** Return the state as a badge; the reason is its tooltip. */
export function stateBadge(run) {
  return h("span", { class: `badge ${run.state.toLowerCase()}`, title: run.reason ?? null }, run.state);
}

/** Return the progress of a run that is under way, with the time left. */
export function progressBar(run) {
  const { progress } = run;
  if (!progress || ["Succeeded", "Failed", "Stopped"].includes(run.state)) return "";
  const left = run.state === "Running" && progress.remainingSeconds ? `${formatSeconds(progress.remainingSeconds)} left` : "";
  const share = progress.percent ?? (progress.totalSteps ? (100 * progress.step) / progress.totalSteps : null);
  const text = share === null ? `step ${progress.step.toLocaleString("en")}` : `${Math.floor(share)}%`;
  return h(
    "span",
    { class: "progress" },
    share === null ? "" : h("progress", { max: 100, value: share, "aria-label": `progress of ${run.name}` }),
    h("span", { class: "progress-text" }, [text, left].filter(Boolean).join(" · ")),
  );
}

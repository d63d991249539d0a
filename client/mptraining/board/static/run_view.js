// The view of one run: how it stands, its curves, and what was recorded about it; of a cluster's job also its state.

import { ChartGroup } from "./chart.js";
import { ChartPanel } from "./charts.js";
import { apiPath, load, offline } from "./data.js";
import { formatBytes, formatSeconds, formatTime, formatValue, runColour } from "./format.js";
import { Badge, Choice, Commands, Facts, Missing, Part, Progress, Table, coalesced } from "./ui.js";
import { html, useAnswer, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./ui.js";

const FACTS = ["policy", "accelerator", "replicas", "globalBatchSize", "examplesPerSecond", "stepSeconds"];
const MORE_FACTS = ["totalSeconds", "peakMemoryBytes", "inputBoundPercent"];
const ATTEMPT_HEADS = ["attempt", "from", "time", "steps", "lost", "end"];
const EVENT_HEADS = ["time", "what", "message", "attempt", "worker"];
const count = (number) => number.toLocaleString("en");

export function RunView({ id, dark }) {
  const [detail, error] = useAnswer(apiPath("run", id), { concerns: (ids) => ids.includes(id) });
  const group = useMemo(() => new ChartGroup(), []);
  const runs = useMemo(() => [{ id, label: "", colour: runColour(0, dark), dash: [] }], [dark]);
  if (!detail) return html`<${Missing} error=${error} />`;
  const { run, columns, attempts, decisions, events, configuration, logs, charts } = detail;
  document.title = `${run.name} · mptj board`;
  const metrics = columns.filter(({ key }) => /^best:val_|^last:(val_)?loss$/.test(key)).slice(0, 4);
  const named = [...FACTS, ...MORE_FACTS].flatMap((wanted) => columns.filter(({ key }) => key === wanted));
  const { step, totalSteps, remainingSeconds } = (run.state === "Running" && run.progress) || {};
  const facts = [
    ["time left", remainingSeconds && formatSeconds(remainingSeconds)],
    ["step", step && `${count(step)}${totalSteps ? ` of ${count(totalSteps)}` : ""}`],
    ...[...metrics, ...named].map(({ title, key, kind }) => [title, formatValue(run.values[key], kind)]),
  ];
  const reason = run.reason !== run.state && run.reason;
  const decision = ({ what, value, reason: why }) => html`<dt>${what} <b>${formatValue(value)}</b></dt><dd>${why}</dd>`;
  const warned = events.map(({ level }) => (level === "Warning" ? "warned" : ""));
  const event = ({ time, topic, message, attempt, worker }) => [formatTime(time), topic, message, attempt, worker];
  const field = ([path, value]) => [html`<code>${path}</code>`, formatValue(value)];
  const fields = Object.entries(configuration).sort().map(field);
  return html`
    <div class="run-title"><h1>${run.name}</h1><${Badge} state=${run.state} /><${Progress} run=${run} /></div>
    <p class="where"><code>${run.folder}</code>${run.job && ` job ${run.job.namespace}/${run.job.name}`}</p>
    ${reason && html`<p class="reason ${run.state.toLowerCase()}" role="note">${reason}</p>`}
    <${Facts} facts=${facts} />
    ${run.job && !offline && html`<${Job} id=${id} />`}
    <${Attempts} attempts=${attempts} />
    <section id="curves"><h2>Curves</h2>
      ${charts.length
        ? html`<${ChartPanel} ...${{ sections: charts, runs, group, dark }} />`
        : html`<p class="empty">No points yet: the first progress is written some seconds after training starts.</p>`}
    </section>
    ${decisions.length > 0 && html`<${Part} id="decisions" title="Decisions" count=${decisions.length} open>
      <dl class="decisions">${decisions.map(decision)}</dl><//>`}
    ${events.length > 0 && html`<${Part} id="events" title="Events" count=${events.length} open=${warned.some(Boolean)}>
      <${Table} heads=${EVENT_HEADS} rows=${events.map(event)} classes=${warned} /><//>`}
    ${fields.length > 0 && html`<${Part} id="configuration" title="Configuration" count=${fields.length}>
      <${Table} heads=${["field", "value"]} rows=${fields} /><//>`}
    <${Commands} commands=${detail.commands} />
    <${ProgramOutput} key=${id} id=${id} logs=${logs} />`;
}

/** The launches of the run: when each ran, how far it came, and the time whose steps were trained again. */
function Attempts({ attempts }) {
  if (!attempts.length) return null;
  const row = ({ number, start, end, outcome, message, firstStep, lastStep, lostSeconds }) => [
    number,
    formatTime(start),
    formatSeconds(end - start),
    lastStep === null ? null : `${count(firstStep ?? 0)} to ${count(lastStep)}`,
    lostSeconds ? formatSeconds(lostSeconds) : "–",
    [outcome ?? "running", message].filter(Boolean).join(": "),
  ];
  return html`<section id="attempts" aria-label="Attempts"><h2>Attempts</h2>
    <${Table} heads=${ATTEMPT_HEADS} rows=${attempts.map(row)} numbers=${[0, 2, 4]} /></section>`;
}

// Pods and Kubernetes events change without an event of the run.
const JOB_MILLISECONDS = 5000;
const WHY = { Failed: "Why it failed", Succeeded: "How it ended", Running: "State", Suspended: "Why it is suspended" };

/** The state of the run's job in the cluster: why it waits or failed, its pods, conditions and Kubernetes events. */
function Job({ id }) {
  const [job, error] = useAnswer(apiPath("job", id), { concerns: (ids) => ids.includes(id), every: JOB_MILLISECONDS });
  if (!job) return error && html`<p class="warning">${error.message}</p>`;
  const { phase, why, pods, conditions, events } = job;
  const podRows = pods.map(({ name, phase: state, node, reason, restarts }) => [name, state, node, reason, restarts]);
  const since = ({ lastTransitionTime }) => formatTime(Date.parse(lastTransitionTime) / 1000);
  const conditionRows = conditions.map((each) => [each.type, each.status, each.reason, each.message, since(each)]);
  const eventRows = events.map((each) => [formatTime(each.time), each.about, each.reason, each.message, each.count]);
  const warned = events.map(({ type }) => (type === "Warning" ? "warned" : ""));
  return html`<section id="job" aria-label="Job">
    <h2>Job <${Badge} state=${job.state} text=${phase} /></h2>
    ${why && html`<div class="note" role="note"><b>${WHY[phase] ?? "Why it waits"}</b><p>${why}</p></div>`}
    <${Table} heads=${["pod", "phase", "node", "reason", "restarts"]} rows=${podRows} numbers=${[4]} />
    <${Part} id="conditions" title="Conditions" count=${conditions.length}>
      <${Table} heads=${["type", "status", "reason", "message", "since"]} rows=${conditionRows} /><//>
    <${Part} id="kubernetes" title="Kubernetes events" count=${events.length} open=${warned.some(Boolean)}>
      <${Table} heads=${["time", "object", "reason", "message", "count"]} rows=${eventRows} classes=${warned} /><//>
  </section>`;
}

// Older text is dropped from the page, not from the file.
const MOST_CHARACTERS = 1_000_000;

/** What the program printed: the logs [{name, bytes}] of the workers, one at a time, which follows the run. */
function ProgramOutput({ id, logs }) {
  const [chosen, choose] = useState(null);
  const [follow, setFollow] = useState(true);
  const name = chosen ?? logs.at(-1)?.name;
  const text = useLog(id, name, logs.find((log) => log.name === name)?.bytes);
  const place = useRef();
  useLayoutEffect(() => {
    if (follow && place.current) place.current.scrollTop = place.current.scrollHeight;
  }, [text, follow]);
  const scrolled = ({ target }) => {
    if (target.scrollHeight - target.scrollTop - target.clientHeight > 30) setFollow(false);
  };
  const options = logs.map((log) => [log.name, `${log.name.replace(/\.log$/, "")} (${formatBytes(log.bytes)})`]);
  return html`<section id="output" class="output"><h2>Program output</h2>
    ${!logs.length && html`<p class="empty">Nothing was kept of what the program printed.</p>`}
    ${logs.length > 0 && html`<div class="controls">
        <${Choice} title="Workers" hidden options=${options} chosen=${name} change=${choose} />
        <label class="inline"><input type="checkbox" checked=${follow}
          onChange=${({ target }) => setFollow(target.checked)} /> follow</label>
      </div>
      <pre class="log" tabindex="0" aria-label="Program output" ref=${place} onScroll=${scrolled}>${text}</pre>`}
  </section>`;
}

/** Return the end of a log and what is appended; read on whenever `bytes` changes. */
function useLog(id, name, bytes) {
  const [text, setText] = useState("");
  const reading = useRef({});
  useEffect(() => {
    const state = { offset: -1, closed: false };
    setText("");
    state.read = coalesced(async () => {
      let end = false;
      while (!end && !state.closed) {
        const answer = await load(apiPath("logs", id, name), { offset: offline ? 0 : state.offset });
        if (state.closed) return;
        state.offset = answer.offset;
        end = answer.end || !answer.text;
        setText((before) => (before + plain(answer.text)).slice(-MOST_CHARACTERS));
      }
    }, 100);
    reading.current = state;
    return () => (state.closed = true);
  }, [id, name]);
  useEffect(() => {
    if (name) reading.current.read(0);
  }, [id, name, bytes]);
  return text;
}

/** Return text without colours of terminals, and of lines that were rewritten with \r the last state alone. */
function plain(text) {
  return text.replace(/\x1b\[[0-9;?]*[A-Za-z]/g, "").replace(/\r\n/g, "\n").replace(/[^\n]*\r(?!\n)/g, "");
}

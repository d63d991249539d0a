// Answers of the board's server, or those in an exported page; changes that the server sends (server-sent events).

const inlined = document.getElementById("data");
const exported = inlined ? JSON.parse(inlined.textContent) : null;

/** Whether this page was exported: it has no server. */
export const offline = exported !== null;

/** Return the error for an answer that is no data: `status` is 0 without an answer, `token` if it was refused. */
function loadError(message, status, token = false) {
  return Object.assign(new Error(message), { status, token });
}

/** Return the path of a resource. */
export function apiPath(...parts) {
  return `/api/${parts.map(encodeURIComponent).join("/")}`;
}

/** Return the answer to GET `path` with `parameters` (values or lists of values). Throws what `loadError` returns. */
export async function load(path, parameters = {}) {
  if (offline) return answerOfPage(path, parameters);
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const item of [value].flat()) if (item !== null && item !== undefined) query.append(name, item);
  }
  let answer;
  try {
    answer = await fetch(query.size ? `${path}?${query}` : path);
  } catch {
    throw loadError("The board's server does not answer.", 0);
  }
  if (answer.ok) return answer.json();
  const body = await answer.text();
  const problem = answer.headers.get("content-type")?.includes("json") ? JSON.parse(body) : {};
  throw loadError(problem.error ?? `The server answered ${answer.status} to ${path}.`, answer.status, problem.token);
}

function answerOfPage(path, { run, name, x }) {
  const [, , kind, id, log] = path.split("/").map(decodeURIComponent);
  if (kind === "runs" || kind === "sweeps") return exported[kind];
  if (["run", "sweep", "importance"].includes(kind) && exported[kind][id]) return exported[kind][id];
  if (kind === "series") return { charts: [name].flat().map((series) => chartOfPage(series, [run].flat(), x)) };
  if (kind === "logs" && exported.logs[id]?.[log]) return { text: exported.logs[id][log], offset: 0, end: true };
  throw loadError("The exported page does not hold this. Open the board with mptj board to see it.", 404);
}

function chartOfPage(name, runs, x) {
  const held = runs.map((run) => ({ run, curve: exported.series[run]?.[name] })).filter(({ curve }) => curve);
  const series = held.map(({ run, curve }) => ({ run, x: curve[x], y: curve.y, index: curve.index }));
  const { label, unit } = held[0]?.curve ?? {};
  return { name, label, x, unit, series };
}

/** What listeners are told; `listen` returns a function that ends it. */
export function channel() {
  const listeners = new Set();
  const listen = (listener) => {
    listeners.add(listener);
    return () => listeners.delete(listener);
  };
  return { listen, tell: (...news) => [...listeners].forEach((listener) => listener(...news)) };
}

/** The ids of changed runs; null if all may have changed. */
export const changes = channel();
/** "live", "stopped" or "forbidden", and the reason, whenever that changes. */
export const connection = channel();
let stream = null;

/** Listen to the server for as long as the page is open. */
export function startListening() {
  if (offline || stream) return;
  let lost = false;
  stream = new EventSource("/api/live");
  stream.onopen = () => {
    connection.tell("live");
    // The server does not repeat what happened while the connection was lost.
    if (lost) changes.tell(null);
    lost = false;
  };
  stream.addEventListener("runs", (event) => changes.tell(JSON.parse(event.data).changed));
  stream.addEventListener("bye", () => connection.tell("stopped"));
  stream.onerror = () => {
    lost = true;
    connection.tell("stopped");
    if (stream.readyState !== EventSource.CLOSED) return;
    // The browser gives up after an answer that is no stream: a new server with another token, or a proxy's error.
    stream = null;
    setTimeout(reconnect, 2000);
  };
}

async function reconnect() {
  try {
    await load("/api/runs");
    startListening();
    changes.tell(null);
  } catch (error) {
    connection.tell(error.token ? "forbidden" : "stopped", error.status ? error.message : undefined);
    setTimeout(reconnect, 2000);
  }
}

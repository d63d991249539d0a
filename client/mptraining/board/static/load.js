// Where the data comes from: the board's server, or the page itself if it was exported.

import { clipped } from "./charts/points.js";

const inlined = document.getElementById("data");
const exported = inlined ? JSON.parse(inlined.textContent) : null;

/** Whether this page was exported: it has no server. */
export const offline = exported !== null;

/** What the server answered instead of data; `status` is 0 if it did not answer, `token` whether it refused the token. */
export class LoadError extends Error {
  constructor(message, status, token = false) {
    super(message);
    this.status = status;
    this.token = token;
  }
}

/** Return the answer to GET `path` with `parameters` (values or lists of values). Raises LoadError. */
export async function load(path, parameters = {}) {
  if (offline) return fromPage(path, parameters);
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const each of [value].flat()) if (each !== null && each !== undefined) query.append(name, each);
  }
  let answer;
  try {
    answer = await fetch(query.size ? `${path}?${query}` : path);
  } catch {
    throw new LoadError("The board's server does not answer.", 0);
  }
  if (answer.ok) return answer.json();
  const body = await answer.text();
  const told = answer.headers.get("content-type")?.includes("json") ? JSON.parse(body) : {};
  const text = told.error ?? `The board's server answered ${answer.status} to ${path}.`;
  throw new LoadError(text, answer.status, told.token === true);
}

/** Return the path of a run's or job's resource. */
export function apiPath(...parts) {
  return `/api/${parts.map(encodeURIComponent).join("/")}`;
}

function fromPage(path, parameters) {
  const [, , kind, id, name] = path.split("/").map(decodeURIComponent);
  if (kind === "runs") return exported.runs;
  if (kind === "sweeps") return exported.sweeps;
  if (kind === "sweep" && exported.sweep[id]) return exported.sweep[id];
  if (kind === "run" && exported.run[id]) return exported.run[id];
  if (kind === "series") return { charts: [parameters.name].flat().map((each) => seriesFromPage(each, parameters)) };
  if (kind === "logs" && exported.logs?.[id]?.[name]) return { text: exported.logs[id][name], offset: 0, end: true };
  throw new LoadError("This is not in the exported page. Open the board with mptj board to see it.", 404);
}

function seriesFromPage(name, { run, x, from, to }) {
  const held = [run].flat().map((id) => [id, exported.series[id]?.[name]]);
  const series = held
    .filter(([, each]) => each?.[x])
    .map(([id, each]) => {
      const [xs, ys] = clipped(each[x], each.y, from, to);
      return { run: id, x: xs, y: ys };
    });
  return { name, x, unit: held.find(([, each]) => each)?.[1].unit ?? "", series };
}

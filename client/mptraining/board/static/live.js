// Changes as the server tells them (server-sent events), and whether the server is there.

import { load, offline } from "./load.js";

const listeners = new Set();
const watchers = new Set();
let source = null;
let retry = 0;

/** Call `listener` with the ids of changed runs (null: all may have changed); return a function that ends this. */
export function onChange(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Call `watcher` with "live", "stopped", "forbidden" (and the reason) or "offline" whenever that changes. */
export function onConnection(watcher) {
  watchers.add(watcher);
  watcher(offline ? "offline" : "live");
}

/** Begin to listen; reconnects for as long as the page is open. */
export function startListening() {
  if (offline || source) return;
  let lost = false;
  source = new EventSource("/api/live");
  source.onopen = () => {
    tell("live");
    // What happened while the server was away is not told again.
    if (lost) for (const each of [...listeners]) each(null);
    lost = false;
  };
  source.addEventListener("runs", (event) => {
    const { changed } = JSON.parse(event.data);
    for (const each of [...listeners]) each(changed);
  });
  source.addEventListener("bye", () => tell("stopped"));
  source.onerror = async () => {
    lost = true;
    tell("stopped");
    if (source.readyState !== EventSource.CLOSED) return;
    // The browser gives up after an answer that is no stream: a new server with another token, or a proxy's error.
    source = null;
    retryLater();
  };
}

function retryLater() {
  clearTimeout(retry);
  retry = setTimeout(again, 2000);
}

async function again() {
  try {
    await load("/api/runs");
    startListening();
    for (const each of [...listeners]) each(null);
  } catch (error) {
    if (error.token) tell("forbidden", error.message);
    else tell("stopped", error.status ? error.message : undefined);
    retryLater();
  }
}

function tell(state, reason) {
  for (const each of watchers) each(state, reason);
}

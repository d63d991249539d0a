// The page's frame: the view that the URL's fragment names, the connection, the theme and the keys.

import { CompareView } from "./compare_view.js";
import { connection, offline, startListening } from "./data.js";
import { RunView } from "./run_view.js";
import { RunsView } from "./runs_view.js";
import { SweepView, SweepsView } from "./sweeps_view.js";
import { html, render, useEffect, useKept, useRef, useState } from "./ui.js";

const KEYS = [
  ["/", "write in the filter"],
  ["g", "all runs"],
  ["c", "compare: the selected runs, or all"],
  ["↑ ↓ or j k", "move between runs"],
  ["Enter", "open the run"],
  ["Space or x", "select the run"],
  ["← →", "move the cursor in a chart that has the focus (Shift: faster)"],
  ["+ − 0", "zoom in, out, reset; with the mouse: drag, double-click"],
  ["d", "dark, light, or as the system"],
  ["Esc", "leave a field or this list"],
  ["?", "this list"],
];
const STOPPED =
  "The board's server has stopped or cannot be reached. What you see may be old; the page reconnects by itself. " +
  "Start it again with mptj board.";
const CONNECTIONS = { live: "live", stopped: "not connected", forbidden: "not connected", offline: "exported page" };
const VIEWS = { runs: RunsView, compare: CompareView, run: RunView, sweeps: SweepsView, sweep: SweepView };
const TITLES = { runs: "Runs", compare: "Compare", sweeps: "Sweeps" };
const THEMES = [null, "dark", "light"];
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");

/** Return the view that a fragment names: {name, id, parameters}. */
function route(fragment) {
  const [path, query = ""] = fragment.replace(/^#\/?/, "").split("?");
  const [name, ...parts] = path.split("/").map(decodeURIComponent);
  const id = parts.join("/");
  const known = name in VIEWS && (name in TITLES || id) ? name : "runs";
  return { name: known, id, parameters: new URLSearchParams(query) };
}

function Board() {
  const [place, setPlace] = useState(() => route(location.hash));
  const [[state, reason], setState] = useState([offline ? "offline" : "live", ""]);
  const [theme, setTheme] = useKept("theme", null);
  const [, setSystem] = useState(systemIsDark.matches);
  const keys = useRef();
  const { name, id, parameters } = place;
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  const nextTheme = () => setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]);
  const actions = {
    "/": () => document.querySelector("input[type=search]")?.focus(),
    "?": () => keys.current.showModal(),
    g: () => (location.hash = "#/runs"),
    c: () => (location.hash = document.getElementById("compare")?.getAttribute("href") ?? "#/compare"),
    d: nextTheme,
  };
  useEffect(() => {
    const moved = () => location.hash !== "#view" && setPlace(route(location.hash));
    const system = () => setSystem(systemIsDark.matches);
    window.addEventListener("hashchange", moved);
    systemIsDark.addEventListener("change", system);
    connection.listen((next, why) => setState([next, why ?? (next === "stopped" ? STOPPED : "")]));
    startListening();
  }, []);
  useEffect(() => {
    const press = (event) => pressed(event, keys.current.open ? {} : actions);
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  });
  useEffect(() => {
    document.title = `${TITLES[name] ?? id} · mptj board`;
    scrollTo(0, 0);
  }, [name, id]);
  const setParameters = (changed) => {
    for (const [key, value] of Object.entries(changed)) parameters.set(key, value);
    // The address can be shared, without a step in the history for each choice.
    const path = [name, id].filter(Boolean).map(encodeURIComponent).join("/");
    history.replaceState(null, "", `#/${path}?${parameters.toString().replaceAll("%2C", ",")}`);
    setPlace({ ...place });
  };
  const key = [name, id, parameters.get("runs")].join("/");
  const dark = theme ? theme === "dark" : systemIsDark.matches;
  const link = ([view, title]) =>
    html`<a href="#/${view}" aria-current=${view === name ? "page" : null}>${title}</a>`;
  const help = ([shown, text]) => html`<dt><kbd>${shown}</kbd></dt><dd>${text}</dd>`;
  return html`
    <a class="visually-hidden" href="#view">Skip to the content</a>
    <header id="top">
      <a class="brand" href="#/runs"><span class="mark" aria-hidden="true"></span>mptj board</a>
      <nav aria-label="Views" id="views">${Object.entries(TITLES).map(link)}</nav>
      <span id="connection" role="status" class=${state}>${CONNECTIONS[state]}</span>
      <button type="button" id="theme" class="quiet" onClick=${nextTheme}>
        ◐ ${{ dark: "Dark", light: "Light" }[theme] ?? "Auto"}</button>
      <button type="button" id="help" class="quiet" aria-label="Keyboard keys" onClick=${actions["?"]}>?</button>
    </header>
    ${reason && html`<div id="notice" role="alert">${reason}</div>`}
    <main id="view" tabindex="-1" class="${name}-view">
      <${VIEWS[name]} key=${key} ...${{ id, parameters, setParameters, dark }} />
    </main>
    <dialog id="keys" ref=${keys} aria-labelledby="keys-title">
      <h2 id="keys-title">Keys</h2>
      <dl>${KEYS.map(help)}</dl>
      <button type="button" onClick=${() => keys.current.close()}>Close</button>
    </dialog>`;
}

function pressed(event, actions) {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "checkbox";
  if (event.key === "Escape" && typing) {
    // Otherwise Chromium empties a search field without an input event.
    event.preventDefault();
    event.target.blur();
  }
  const action = actions[event.key];
  if (!action || typing || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  event.preventDefault();
  action();
}

render(html`<${Board} />`, document.getElementById("board"));

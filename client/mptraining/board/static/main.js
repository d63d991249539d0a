// The page's frame: which view is open (by the URL's fragment), the connection, the theme and the keys.

import { emptyState, h } from "./dom.js";
import { offline } from "./load.js";
import { onConnection, startListening } from "./live.js";
import { keep, kept } from "./settings.js";
import { CompareView } from "./views/compare_view.js";
import { JobView } from "./views/job_view.js";
import { RunView } from "./views/run_view.js";
import { RunsView } from "./views/runs_view.js";
import { SweepView } from "./views/sweep_view.js";
import { SweepsView } from "./views/sweeps_view.js";

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
const NOTICES = {
  stopped: "The board's server has stopped or cannot be reached. What you see may be old; the page reconnects by itself. Start it again with mptj board.",
};

let view = null;
let opened = 0;

/** Return the view that a fragment names, and its arguments. */
export function route(fragment) {
  const [path, query = ""] = fragment.replace(/^#\/?/, "").split("?");
  const [name, ...parts] = path.split("/").map(decodeURIComponent);
  const parameters = new URLSearchParams(query);
  if (name === "compare") return { name, make: () => new CompareView(parameters) };
  if (name === "run" && parts[0]) return { name, make: () => new RunView(parts.join("/")) };
  if (name === "sweep" && parts[0]) return { name, make: () => new SweepView(parts.join("/")) };
  if (name === "sweeps") return { name, make: () => new SweepsView() };
  if (name === "job" && parts.length === 2) return { name, make: () => new JobView(parts[0], parts[1]) };
  return { name: "runs", make: () => new RunsView() };
}

async function show() {
  const main = document.getElementById("view");
  if (location.hash === "#view") return;
  const { name, make } = route(location.hash);
  const turn = (opened += 1);
  view?.close();
  view = make();
  drawNavigation(name);
  const root = h("div", { class: `view ${name}-view` });
  main.replaceChildren(root);
  try {
    await view.open(root);
  } catch (error) {
    if (turn !== opened) return;
    if (error.status === undefined) throw error;
    root.replaceChildren(emptyState("This cannot be shown", error.message, h("a", { href: "#/runs" }, "All runs")));
    if (error.token) notice("forbidden", error.message);
  }
  if (turn !== opened) return;
  document.title = `${view.title ?? "Runs"} · mptj board`;
  scrollTo(0, 0);
}

function drawNavigation(active) {
  const link = (name, title) => h("a", { href: `#/${name}`, "aria-current": active === name ? "page" : null }, title);
  const views = document.getElementById("views");
  views.replaceChildren(link("runs", "Runs"), link("compare", "Compare"), link("sweeps", "Sweeps"));
}

function notice(state, reason = NOTICES[state] ?? "") {
  const place = document.getElementById("notice");
  place.hidden = !reason;
  place.textContent = reason;
  const titles = { live: "live", stopped: "not connected", forbidden: "not connected", offline: "exported page" };
  const connection = document.getElementById("connection");
  connection.className = state;
  connection.textContent = titles[state];
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  keep("theme", theme);
  document.getElementById("theme").textContent = `◐ ${{ dark: "Dark", light: "Light" }[theme] ?? "Auto"}`;
  document.getElementById("theme").setAttribute("aria-label", `Colours: ${theme ?? "as the system"}`);
  view?.redraw?.();
}

function nextTheme() {
  const order = [null, "dark", "light"];
  setTheme(order[(order.indexOf(kept("theme", null)) + 1) % order.length]);
}

function showKeys() {
  const dialog = document.getElementById("keys");
  const rows = KEYS.map(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)]);
  dialog.replaceChildren(h("h2", { id: "keys-title" }, "Keys"), h("dl", {}, rows), h("button", { type: "button", onclick: () => dialog.close() }, "Close"));
  dialog.showModal();
}

function pressed(event) {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "checkbox";
  if (event.key === "Escape" && typing) {
    // Otherwise Chromium empties a search field without an input event.
    event.preventDefault();
    event.target.blur();
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const action = {
    "/": () => document.querySelector("input[type=search]")?.focus(),
    "?": showKeys,
    g: () => (location.hash = "#/runs"),
    c: () => (location.hash = document.getElementById("compare")?.getAttribute("href") ?? "#/compare"),
    d: nextTheme,
  }[event.key];
  if (!action || document.getElementById("keys").open) return;
  event.preventDefault();
  action();
}

/** Begin: theme, keys, connection, and the first view. */
export function start() {
  setTheme(kept("theme", null));
  document.getElementById("theme").addEventListener("click", nextTheme);
  document.getElementById("help").addEventListener("click", showKeys);
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault();
    document.getElementById("view").focus();
  });
  document.addEventListener("keydown", pressed);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view?.redraw?.());
  window.addEventListener("hashchange", show);
  onConnection(notice);
  if (!offline) startListening();
  show();
}

start();

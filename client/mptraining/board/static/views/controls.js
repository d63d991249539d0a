// Controls above charts: the horizontal axis, smoothing, the vertical axis, and what to do with outliers.

import { debounced, h } from "../dom.js";
import { keep, kept } from "../settings.js";

/** Return the kept settings of charts. */
export function chartSettings() {
  return { x: kept("x", "step"), smooth: kept("smooth", 0), scale: kept("scale", "auto"), cut: kept("cut", true) };
}

/** Return the controls; `change` is called with the settings that changed. */
export function chartControls(change, panel) {
  const now = chartSettings();
  const set = (name, value) => {
    keep(name, value);
    change({ [name]: value });
  };
  const soon = debounced((value) => set("smooth", value), 80);
  const shown = h("output", {}, now.smooth.toFixed(2));
  const slide = (event) => {
    shown.textContent = Number(event.target.value).toFixed(2);
    soon(Number(event.target.value));
  };
  const slider = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: now.smooth, "aria-label": "Smoothing", oninput: slide });
  const cut = h("input", { type: "checkbox", checked: now.cut, onchange: (event) => set("cut", event.target.checked) });
  return h(
    "div",
    { class: "controls", role: "group", "aria-label": "Charts" },
    choice("Across", [["step", "step"], ["epoch", "epoch"], ["seconds", "time"]], now.x, (value) => set("x", value)),
    choice("Upwards", [["auto", "auto"], ["linear", "linear"], ["log", "log"]], now.scale, (value) => set("scale", value)),
    h("label", { class: "inline" }, "Smoothing ", slider, shown),
    h("label", { class: "inline", title: "Values far from those of most runs are left outside the chart; a note counts them" }, cut, " cut outliers"),
    panel.reset,
  );
}

/** Return a group of buttons of which one is pressed. */
export function choice(title, options, chosen, change) {
  const buttons = options.map(([value, text]) =>
    h("button", { type: "button", "aria-pressed": String(value === chosen), "data-value": value, onclick: () => press(value) }, text),
  );
  function press(value) {
    for (const each of buttons) each.setAttribute("aria-pressed", String(each.dataset.value === value));
    change(value);
  }
  return h("span", { class: "choice", role: "group", "aria-label": title }, h("span", { class: "choice-title", "aria-hidden": "true" }, title), buttons);
}

// The view of one run: how it stands, its curves, and everything that was recorded about it.

import { chartSections } from "../charts/chart_list.js";
import { ChartPanel } from "../charts/chart_panel.js";
import { runColour } from "../colours.js";
import { h, throttled } from "../dom.js";
import { formatSeconds, formatValue } from "../format.js";
import { apiPath, load } from "../load.js";
import { onChange } from "../live.js";
import { chartControls, chartSettings } from "./controls.js";
import { ProgramOutput } from "./program_output.js";
import { jobLink, progressBar, stateBadge } from "./run_row.js";
import { checkpoints, commands, configuration, decisions, events, quarantine } from "./run_sections.js";
import { timeLine } from "./time_line.js";

const FACTS = ["policy", "accelerator", "replicas", "globalBatchSize", "examplesPerSecond", "stepSeconds", "totalSeconds", "peakMemoryBytes", "inputBoundPercent"];

export class RunView {
  constructor(id) {
    this.id = id;
    this.title = id;
    this.refresh = throttled(() => this.reload(), 300);
  }

  async open(root) {
    this.root = root;
    [this.detail, this.all] = await Promise.all([load(apiPath("run", this.id)), load("/api/runs")]);
    this.title = this.detail.run.name;
    this.head = h("div", { class: "run-head" });
    this.panel = new ChartPanel(this.sections(), chartSettings());
    this.output = new ProgramOutput(this.id);
    this.parts = h("div", { class: "run-parts" });
    const curves = h("section", { id: "curves" }, h("h2", {}, "Curves"), chartControls((changed) => this.panel.set(changed), this.panel), this.panel.element);
    this.noCurves = h("p", { class: "empty" }, "No points yet: the first progress is written some seconds after training starts.");
    root.replaceChildren(this.head, jumps(root), this.noCurves, curves, this.parts, this.output.element);
    this.stop = onChange((changed) => (changed === null || changed.includes(this.id)) && this.refresh());
    this.draw();
    this.setRun();
    this.output.update(this.detail.logs ?? []);
  }

  close() {
    this.stop?.();
    this.panel?.destroy();
    this.output?.close();
  }

  setRun() {
    this.panel.setRuns([{ id: this.id, label: this.detail.run.name, colour: runColour(0), dash: [] }]);
  }

  redraw() {
    if (this.panel) this.setRun();
  }

  async reload() {
    this.detail = await load(apiPath("run", this.id));
    this.draw();
    this.panel.setSections(this.sections());
    this.panel.refresh();
    this.output.update(this.detail.logs ?? []);
  }

  sections() {
    return chartSections(this.detail.series ?? {}, 1);
  }

  draw() {
    const { run, divergence, goodput, attempts } = this.detail;
    this.noCurves.hidden = this.sections().length > 0;
    const open = [...this.parts.querySelectorAll("details[open]")].map((each) => each.id);
    this.head.replaceChildren(
      h("div", { class: "run-title" }, h("h1", {}, run.name), stateBadge(run), progressBar(run)),
      run.reason && run.reason !== run.state && !(divergence?.message && run.reason.includes(divergence.message)) ? h("p", { class: run.state === "Failed" ? "reason failed" : "reason" }, run.reason) : "",
      h("p", { class: "where" }, run.folder ? h("code", {}, run.folder) : "", run.job ? [" ", h("a", { href: jobLink(run.job) }, `job ${run.job.namespace}/${run.job.name}`)] : ""),
      divergence ? this.divergence(divergence, run.state) : "",
      this.facts(run, goodput),
      attempts?.length ? timeLine(attempts, goodput) : "",
    );
    this.parts.replaceChildren(
      ...[decisions(this.detail), checkpoints(this.detail), events(this.detail), quarantine(this.detail), configuration(this.detail), commands(this.detail.commands)].filter(Boolean),
    );
    for (const each of open) this.parts.querySelector(`#${CSS.escape(each)}`)?.setAttribute("open", "");
  }

  divergence({ step, layer, message }, state) {
    const place = [layer ? `in layer ${layer}` : null, step !== null && step !== undefined ? `at step ${step.toLocaleString("en")}` : null].filter(Boolean).join(" ");
    return h("div", { class: "divergence", role: "note" }, h("b", {}, `${state === "Failed" ? "The training diverged: values" : "Values"} that are not finite ${place}`), message ? h("p", {}, message) : "");
  }

  facts(run, goodput) {
    const metrics = this.all.columns.filter((each) => /^best:val_|^last:(val_)?loss$/.test(each.key)).slice(0, 4);
    const columns = [...metrics, ...FACTS.map((key) => this.all.columns.find((each) => each.key === key))].filter((each) => each && run.values[each.key] !== undefined && run.values[each.key] !== null);
    const known = columns.map((each) => [each.title, formatValue(run.values[each.key], each.kind)]);
    if (goodput !== null && goodput !== undefined) known.push(["goodput", formatValue(goodput * 100, "percent"), "share of the wall time that advanced the training"]);
    if (run.progress && run.state === "Running") known.unshift(["step", `${run.progress.step.toLocaleString("en")}${run.progress.totalSteps ? ` of ${run.progress.totalSteps.toLocaleString("en")}` : ""}`]);
    if (run.progress?.remainingSeconds && run.state === "Running") known.unshift(["time left", formatSeconds(run.progress.remainingSeconds)]);
    return h("dl", { class: "facts" }, known.map(([title, value, hint]) => h("div", { title: hint ?? null }, h("dt", {}, title), h("dd", {}, value))));
  }
}

/** Return buttons that scroll to the parts of the page; a fragment in the address would name another view. */
function jumps(root) {
  const jump = (id) => {
    const part = root.querySelector(`#${id}`);
    if (!part) return;
    if (part.tagName === "DETAILS") part.open = true;
    part.scrollIntoView({ block: "start" });
    (part.querySelector("summary, button, .log") ?? part).focus({ preventScroll: true });
  };
  const parts = [["curves", "Curves"], ["decisions", "Decisions"], ["checkpoints", "Checkpoints"], ["events", "Events"], ["configuration", "Configuration"], ["output", "Output"]];
  return h("nav", { class: "jumps", "aria-label": "Parts of this page" }, parts.map(([id, title]) => h("button", { type: "button", class: "quiet", onclick: () => jump(id) }, title)));
}

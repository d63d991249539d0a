// The view of a job on a cluster: where it stands, why it waits, its pods, conditions and events.

import { h, throttled } from "../dom.js";
import { formatTime } from "../format.js";
import { apiPath, load } from "../load.js";
import { onChange } from "../live.js";
import { commands, table } from "./run_sections.js";

const EVERY = 5000;

export class JobView {
  constructor(namespace, name) {
    this.place = [namespace, name];
    this.title = `${namespace}/${name}`;
    this.refresh = throttled(() => this.reload(), 300);
  }

  async open(root) {
    this.root = root;
    await this.reload();
    this.stop = onChange(() => this.refresh());
    // Pods and Kubernetes events change without an event of the run.
    this.timer = setInterval(() => this.reload().catch(() => {}), EVERY);
  }

  close() {
    this.stop?.();
    clearInterval(this.timer);
  }

  async reload() {
    const job = await load(apiPath("job", ...this.place));
    if (this.root.contains(document.activeElement)) return;
    const { phase, conditions = [], pods = [], events = [], why } = job;
    const none = (what, text) => h("p", { class: "empty" }, text);
    const state = { Restarting: "Waiting", Pending: "Waiting", Queued: "Waiting", Suspended: "Stopped" }[phase] ?? phase;
    const part = (title, count, content) => h("section", { class: "part" }, h("h2", {}, title, count ? h("span", { class: "count" }, ` ${count}`) : ""), content);
    this.root.replaceChildren(
      h("div", { class: "run-title" }, h("h1", {}, this.place[1]), h("span", { class: `badge ${(state ?? "waiting").toLowerCase()}` }, phase ?? "unknown")),
      h("p", { class: "where" }, `namespace ${this.place[0]}`, job.run ? [" · ", h("a", { href: `#/run/${encodeURIComponent(job.run)}` }, "its run")] : ""),
      why ? h("div", { class: "divergence waiting", role: "note" }, h("b", {}, { Failed: "Why it failed", Succeeded: "How it ended", Running: "State", Suspended: "Why it is suspended" }[phase] ?? "Why it waits"), h("p", {}, why)) : "",
      part("Pods", pods.length, pods.length ? table(["pod", "phase", "node", "reason", "restarts"], pods.map((each) => [each.name, each.phase, each.node, each.reason, each.restarts]), [4]) : none("pods", "The job has no pods now.")),
      part("Conditions", 0, conditions.length ? table(["type", "status", "reason", "message", "since"], conditions.map((each) => [each.type, each.status, each.reason, each.message, moment(each.lastTransitionTime ?? each.time)])) : h("p", { class: "empty" }, "The operator has not reported any condition yet.")),
      part("Kubernetes events", events.length, events.length ? table(["time", "object", "reason", "message", "count"], events.map((each) => [formatTime(each.time), each.object, each.reason, each.message, each.count]), [4], events.map((each) => (each.type === "Warning" ? "warned" : null))) : none("events", "No events; Kubernetes deletes them after an hour.")),
      commands(job.commands) ?? "",
    );
  }
}

function moment(time) {
  return formatTime(typeof time === "string" ? Date.parse(time) / 1000 : time);
}

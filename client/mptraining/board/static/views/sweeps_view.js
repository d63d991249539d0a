// The view of all sweeps: a table that leads to the page of each.

import { emptyState, h, throttled } from "../dom.js";
import { formatValue } from "../format.js";
import { load } from "../load.js";
import { onChange } from "../live.js";

export class SweepsView {
  constructor() {
    this.title = "Sweeps";
    this.refresh = throttled(() => this.reload(), 300);
  }

  async open(root) {
    this.root = root;
    await this.reload();
    this.stop = onChange(() => this.refresh());
  }

  close() {
    this.stop?.();
  }

  async reload() {
    const { sweeps } = await load("/api/sweeps");
    if (!sweeps.length) return this.root.replaceChildren(emptyState("No sweeps yet", "A sweep searches the hyperparameters of a job:", h("code", {}, "mptj run sweep.yaml")));
    const row = (each) =>
      h(
        "tr",
        {},
        h("th", { scope: "row", class: "name" }, h("a", { href: `#/sweep/${encodeURIComponent(each.id)}`, title: each.folder ?? each.name }, each.name)),
        h("td", {}, h("span", { class: `badge ${each.state.toLowerCase()}` }, each.phase)),
        h("td", {}, each.algorithm),
        h("td", { class: "number" }, `${each.counts.ended} of ${each.max}`),
        h("td", { class: "number" }, each.best ? formatValue(each.best.objective, "number") : "–"),
        h("td", {}, each.metric),
      );
    const titles = ["sweep", "state", "algorithm", "trials", "best", "objective"];
    return this.root.replaceChildren(
      h("h1", {}, "Sweeps"),
      h("div", { class: "table-frame" }, h("table", { class: "runs" }, h("thead", {}, h("tr", {}, titles.map((title, at) => h("th", { scope: "col", class: at === 3 || at === 4 ? "number" : "" }, title)))), h("tbody", {}, sweeps.map(row)))),
    );
  }
}

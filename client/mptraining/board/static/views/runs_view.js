// The view of all runs: a table to sort, filter, group and hide, and to select from.

import { announce, emptyState, h, throttled } from "../dom.js";
import { formatValue } from "../format.js";
import { load } from "../load.js";
import { onChange } from "../live.js";
import { groupRuns, isShownAtFirst, parseFilter, sortRuns, splitShared } from "../runs_table.js";
import { keep, kept } from "../settings.js";
import { runRow } from "./run_row.js";

const FIRST_ROWS = 200;

export class RunsView {
  constructor() {
    this.sort = kept("sort", { key: "startTime", descending: true });
    // Column -> shown, where the reader has chosen; else `isShownAtFirst`.
    this.columnChoices = kept("columns", {});
    this.hiddenRuns = new Set(kept("hiddenRuns", []));
    this.groupKey = kept("group", "");
    this.selected = new Set(kept("selected", []));
    this.most = FIRST_ROWS;
    this.showHidden = false;
    this.refresh = throttled(() => this.reload(), 250);
  }

  async open(root) {
    this.filter = h("input", { type: "search", id: "filter", placeholder: "Filter: words, /regex/, policy=float32, loss<0.5", "aria-label": "Filter runs", "aria-describedby": "filter-problem", oninput: () => this.draw(), value: kept("filter", "") });
    this.problem = h("span", { class: "problem", id: "filter-problem", role: "status" });
    this.group = h("select", { "aria-label": "Group by", onchange: () => this.setGroup() });
    this.columnMenu = h("details", { class: "menu" }, h("summary", {}, "Columns"));
    this.actions = h("div", { class: "actions" });
    this.sources = h("div");
    this.shared = h("p", { class: "shared" });
    this.table = h("div", { class: "table-frame", onkeydown: (event) => this.key(event) });
    this.toolbar = h("div", { class: "toolbar" }, this.filter, h("label", { class: "inline" }, "Group ", this.group), this.columnMenu, this.actions);
    root.replaceChildren(h("h1", { class: "visually-hidden" }, "Runs"), this.toolbar, this.problem, this.sources, this.shared, this.table);
    this.stop = onChange(() => this.refresh());
    await this.reload();
  }

  close() {
    this.stop?.();
  }

  async reload() {
    this.data = await load("/api/runs");
    const known = new Set(this.data.runs.map((each) => each.id));
    this.selected = new Set([...this.selected].filter((each) => known.has(each)));
    this.draw();
  }

  draw() {
    const { columns, runs, sources } = this.data;
    keep("filter", this.filter.value);
    this.sources.replaceChildren(
      ...sources.filter((each) => each.problem).map((each) => h("p", { class: "warning", role: "alert" }, h("b", {}, each.where), ` ${each.problem}`)),
    );
    this.toolbar.hidden = !runs.length;
    if (!runs.length) {
      const places = sources.map((each) => each.where).join(", ") || "the folders given";
      this.shared.textContent = "";
      return this.table.replaceChildren(emptyState("No runs yet", `The board watches ${places}. Start a job, for example:`, h("code", {}, "mptj run job.yaml"), "It appears here as soon as its first event is written; the page need not be reloaded."));
    }
    const parsed = parseFilter(this.filter.value, columns);
    this.problem.textContent = parsed.error ?? "";
    this.filter.setAttribute("aria-invalid", String(Boolean(parsed.error)));
    if (parsed.test) this.test = parsed.test;
    const found = runs.filter((each) => this.test(each));
    this.hiddenCount = found.filter((each) => this.hiddenRuns.has(each.id)).length;
    const shown = this.showHidden ? found : found.filter((each) => !this.hiddenRuns.has(each.id));
    const { differing, shared } = splitShared(shown, columns);
    this.visible = differing.filter((each) => this.isShown(each.key));
    this.shown = sortRuns(shown, this.sort);
    this.shared.replaceChildren(...(shared.length ? ["Same in all: ", ...shared.map((each) => h("span", { class: "chip" }, `${each.title} `, h("b", {}, formatValue(shown[0].values[each.key], each.kind))))] : []));
    this.drawMenus(columns);
    this.drawActions(found.length);
    this.drawTable();
    return undefined;
  }

  drawMenus(columns) {
    const option = ({ key, title }) => h("option", { value: key, selected: key === this.groupKey }, title);
    const groups = [{ key: "", title: "none" }, { key: "state", title: "state" }, ...columns.filter((each) => each.kind === "text" || ["replicas", "globalBatchSize", "learningRate"].includes(each.key))];
    if (document.activeElement !== this.group) this.group.replaceChildren(...groups.map(option));
    if (this.columnMenu.open) return;
    const box = (column) => h("label", {}, h("input", { type: "checkbox", checked: this.isShown(column.key), onchange: (event) => this.toggleColumn(column.key, event.target.checked) }), ` ${column.title}`);
    const showAll = h("button", { type: "button", onclick: () => this.setColumns(columns, true) }, "Show all");
    const hideAll = h("button", { type: "button", onclick: () => this.setColumns(columns, false) }, "Hide all");
    this.columnMenu.replaceChildren(this.columnMenu.querySelector("summary"), h("div", { class: "menu-body" }, h("div", { class: "menu-actions" }, showAll, hideAll), columns.map(box)));
  }

  drawActions(found) {
    const chosen = this.shown.filter((each) => this.selected.has(each.id));
    const compared = chosen.length ? chosen : this.shown.slice(0, FIRST_ROWS);
    const label = chosen.length ? `Compare ${chosen.length} selected` : compared.length === this.shown.length ? `Compare all ${compared.length}` : `Compare first ${compared.length}`;
    const compare = h("a", { class: "button primary", id: "compare", href: `#/compare?runs=${compared.map((each) => encodeURIComponent(each.id)).join(",")}` }, label);
    const hide = h("button", { type: "button", onclick: () => this.hideSelected() }, this.showHidden && chosen.some((each) => this.hiddenRuns.has(each.id)) ? "Unhide" : "Hide");
    const unhide = h("button", { type: "button", onclick: () => this.toggleHidden() }, this.showHidden ? "Leave hidden runs out" : `Show ${this.hiddenCount} hidden`);
    const focused = document.activeElement?.id;
    this.actions.replaceChildren(
      h("span", { class: "count", id: "count", role: "status" }, found === this.data.runs.length ? `${found} runs` : `${found} of ${this.data.runs.length} runs`),
      chosen.length ? hide : "",
      this.hiddenCount ? unhide : "",
      this.shown.length ? compare : "",
    );
    if (focused === "compare") document.getElementById("compare")?.focus();
  }

  drawTable() {
    const focused = document.activeElement?.closest?.("[data-run]")?.dataset.run;
    const inCheckbox = document.activeElement?.type === "checkbox";
    const sorted = document.activeElement?.dataset?.sort;
    const place = this.table.scrollLeft;
    const groups = groupRuns(this.shown.slice(0, this.most), this.groupKey);
    const bodies = groups.map((group) => h("tbody", {}, this.groupHead(group), group.runs.map((run) => runRow(run, this.visible, this))));
    const head = h("tr", {}, this.selectAll(), this.headCell({ key: "name", title: "run" }), this.headCell({ key: "state", title: "state" }), this.visible.map((each) => this.headCell(each)));
    const table = h("table", { class: "runs" }, h("caption", { class: "visually-hidden" }, "Runs; Enter opens a run, Space selects it"), h("thead", {}, head), bodies);
    const rest = this.shown.length - this.most;
    this.table.replaceChildren(
      this.shown.length ? table : emptyState("No run matches", "Change or clear the filter.", h("button", { type: "button", onclick: () => this.clearFilter() }, "Clear the filter")),
      rest > 0 ? h("button", { type: "button", class: "more", onclick: () => this.showMore() }, `Show ${rest.toLocaleString("en")} more`) : "",
    );
    this.table.scrollLeft = place;
    if (focused) {
      const row = this.table.querySelector(`[data-run="${CSS.escape(focused)}"]`);
      (inCheckbox ? row?.querySelector("input") : row?.querySelector("a"))?.focus({ preventScroll: true });
    } else if (sorted) this.table.querySelector(`[data-sort="${CSS.escape(sorted)}"]`)?.focus({ preventScroll: true });
  }

  groupHead(group) {
    if (!this.groupKey) return null;
    const column = this.data.columns.find((each) => each.key === this.groupKey);
    const title = `${column?.title ?? this.groupKey}: ${formatValue(group.value, column?.kind)}`;
    return h("tr", { class: "group" }, h("th", { colspan: this.visible.length + 3, scope: "rowgroup" }, title, h("span", { class: "count" }, ` ${group.runs.length}`)));
  }

  headCell({ key, title, kind }) {
    const active = this.sort.key === key;
    const arrow = active ? (this.sort.descending ? " ↓" : " ↑") : "";
    const order = active ? (this.sort.descending ? "descending" : "ascending") : null;
    const sort = h("button", { type: "button", "data-sort": key, onclick: () => this.sortBy(key) }, title, h("span", { "aria-hidden": "true" }, arrow));
    return h("th", { scope: "col", "aria-sort": order, class: `${kind && kind !== "text" ? "number" : ""} ${key === "name" ? "name" : ""}` }, sort);
  }

  selectAll() {
    const some = this.shown.some((each) => this.selected.has(each.id));
    const all = some && this.shown.every((each) => this.selected.has(each.id));
    const toggle = () => this.select(this.shown.map((each) => each.id), !all);
    return h("th", { class: "check" }, h("input", { type: "checkbox", "aria-label": "Select all shown runs", checked: all, indeterminate: some && !all, onchange: toggle }));
  }

  sortBy(key) {
    const column = this.data.columns.find((each) => each.key === key);
    const first = column?.better === "higher" || column?.kind === "time";
    this.sort = { key, descending: this.sort.key === key ? !this.sort.descending : first };
    keep("sort", this.sort);
    this.draw();
    announce(`sorted by ${column?.title ?? key}, ${this.sort.descending ? "descending" : "ascending"}`);
  }

  setGroup() {
    this.groupKey = this.group.value;
    keep("group", this.groupKey);
    this.draw();
  }

  toggleColumn(key, shown) {
    this.columnChoices[key] = shown;
    keep("columns", this.columnChoices);
    this.draw();
  }

  isShown(key) {
    return this.columnChoices[key] ?? isShownAtFirst(key);
  }

  setColumns(columns, shown) {
    for (const each of columns) this.columnChoices[each.key] = shown;
    keep("columns", this.columnChoices);
    this.columnMenu.open = false;
    this.draw();
  }

  select(ids, chosen) {
    for (const each of ids) this.selected[chosen ? "add" : "delete"](each);
    keep("selected", [...this.selected]);
    this.draw();
  }

  hideSelected() {
    const chosen = [...this.selected];
    const unhide = this.showHidden && chosen.some((each) => this.hiddenRuns.has(each));
    for (const each of chosen) this.hiddenRuns[unhide ? "delete" : "add"](each);
    keep("hiddenRuns", [...this.hiddenRuns]);
    this.selected.clear();
    this.select([], false);
  }

  toggleHidden() {
    this.showHidden = !this.showHidden;
    this.draw();
  }

  showMore() {
    this.most = Infinity;
    this.draw();
  }

  clearFilter() {
    this.filter.value = "";
    this.draw();
    this.filter.focus();
  }

  /** Arrows move between rows, Enter opens (it is a link), Space selects. */
  key(event) {
    const row = event.target.closest("[data-run]");
    const move = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1 }[event.key];
    if (!row || (!move && event.key !== " " && event.key !== "x")) return;
    if (event.key === " " && event.target.type === "checkbox") return;
    event.preventDefault();
    const rows = [...this.table.querySelectorAll("[data-run]")];
    if (move) rows[rows.indexOf(row) + move]?.querySelector("a").focus();
    else this.select([row.dataset.run], !this.selected.has(row.dataset.run));
  }
}

// What the program printed, of each worker; follows while the run is under way.

import { h } from "../dom.js";
import { formatBytes } from "../format.js";
import { apiPath, load, offline } from "../load.js";

// Older text is dropped from the page, not from the file.
const MOST_CHARACTERS = 1_000_000;

export class ProgramOutput {
  constructor(id) {
    this.id = id;
    this.name = null;
    this.offset = -1;
    this.busy = false;
    this.tabs = h("div", { class: "log-tabs", role: "group", "aria-label": "Workers" });
    this.text = h("pre", { class: "log", tabindex: "0", "aria-label": "Program output" });
    this.follow = h("input", { type: "checkbox", checked: true, onchange: () => this.toEnd() });
    this.frame = h("div", {}, h("div", { class: "controls" }, this.tabs, h("label", { class: "inline" }, this.follow, " follow")), this.text);
    this.none = h("p", { class: "empty" }, "Nothing was kept of what the program printed.");
    this.element = h("section", { id: "output", class: "output" }, h("h2", {}, "Program output"), this.none, this.frame);
    this.text.addEventListener("scroll", () => this.scrolled());
  }

  /** Show the logs [{name, bytes}]; reads on if the open one has grown. */
  update(logs) {
    this.none.hidden = logs.length > 0;
    this.frame.hidden = !logs.length;
    if (!logs.length) return;
    if (!logs.some((each) => each.name === this.name)) this.choose(logs[logs.length - 1].name);
    else this.read();
    const tab = ({ name, bytes }) =>
      h("button", { type: "button", "aria-pressed": String(name === this.name), onclick: () => (this.choose(name), this.update(logs)) }, name.replace(/\.log$/, ""), h("span", { class: "count" }, ` ${formatBytes(bytes)}`));
    this.tabs.replaceChildren(...logs.map(tab));
  }

  choose(name) {
    this.name = name;
    this.offset = -1;
    this.text.textContent = "";
    this.read();
  }

  async read() {
    if (this.busy || this.closed) return;
    this.busy = true;
    const name = this.name;
    try {
      let end = false;
      while (!end && name === this.name && !this.closed) {
        const first = this.offset < 0;
        const answer = await load(apiPath("logs", this.id, name), { offset: offline ? 0 : this.offset });
        if (name !== this.name) break;
        if (first) this.text.textContent = "";
        this.append(answer.text);
        end = answer.end || !answer.text;
        this.offset = answer.offset;
      }
    } catch (error) {
      if (!this.text.textContent) this.text.textContent = error.message;
    } finally {
      this.busy = false;
    }
    if (name !== this.name) this.read();
  }

  append(text) {
    if (!text) return;
    // A progress bar rewrites its line with \r: what it ended with is kept. Colours of terminals are dropped.
    const plain = text.replace(/\x1b\[[0-9;?]*[A-Za-z]/g, "").replace(/\r\n/g, "\n").replace(/[^\n]*\r(?!\n)/g, "");
    this.text.append(plain);
    if (this.text.textContent.length > MOST_CHARACTERS) this.text.textContent = this.text.textContent.slice(-MOST_CHARACTERS / 2);
    this.toEnd();
  }

  toEnd() {
    if (this.follow.checked) this.text.scrollTop = this.text.scrollHeight;
  }

  scrolled() {
    const atEnd = this.text.scrollHeight - this.text.scrollTop - this.text.clientHeight < 30;
    if (this.follow.checked && !atEnd) this.follow.checked = false;
  }

  close() {
    this.closed = true;
  }
}

// The list of runs as a value: filter, order, columns. No drawing here.

import { inOrder } from "./numbers.js";

/** The columns that are fields of a run itself. */
export const OWN = [{ key: "name", title: "run" }, { key: "state", title: "state" }];

/** Return the value of a column, or of the run's or trial's own fields; null if there is none. */
export function valueOf(run, key) {
  return (["name", "state", "number"].includes(key) ? run[key] : run.values[key]) ?? null;
}

/** Return {test} for the filter's text, or {error}: words, /regex/, column=text, column<number, column>number. */
export function parseFilter(text, columns) {
  const pattern = /^\/(.*)\/i?$/.exec(text.trim());
  if (pattern) {
    try {
      const regex = new RegExp(pattern[1], "i");
      return { test: (run) => regex.test(searchable(run)) };
    } catch (error) {
      return { error: `not a regular expression: ${error.message.replace(/^Invalid regular expression: /, "")}` };
    }
  }
  const conditions = text.trim().toLowerCase().split(/\s+/).filter(Boolean).map((word) => condition(word, columns));
  const wrong = conditions.find(({ error }) => error);
  return wrong ?? { test: (run) => conditions.every(({ test }) => test(run)) };
}

function condition(word, columns) {
  const parts = /^([^=<>]+)(=|<|>)(.+)$/.exec(word);
  if (!parts) return { test: (run) => searchable(run).toLowerCase().includes(word) };
  const [, name, operator, wanted] = parts;
  const column = findColumn(name, columns);
  if (!column) return { error: `no column "${name}"; the titles of the table, without blanks, are columns` };
  const number = Number(wanted);
  if (operator !== "=" && Number.isNaN(number)) return { error: `"${word}": expected a number after ${operator}` };
  const compare = {
    "=": (value) => String(value).toLowerCase() === wanted || number === value,
    "<": (value) => value < number,
    ">": (value) => value > number,
  }[operator];
  return {
    test: (run) => {
      const value = valueOf(run, column.key);
      return value !== null && compare(value);
    },
  };
}

/** Return the column that was typed: its name, its beginning or a part of it; of several the one that is shown. */
function findColumn(name, columns) {
  const plain = (text) => text.toLowerCase().replace(/[\s_:]/g, "");
  const names = ({ key, title }) => [key, title, key.replace(/^(best|last):/, "")].map(plain);
  const wanted = plain(name);
  const all = [...OWN, ...columns.filter(({ key }) => isShown(key)), ...columns];
  const tests = [(text) => text === wanted, (text) => text.startsWith(wanted), (text) => text.includes(wanted)];
  return tests.map((test) => all.find((column) => names(column).some(test))).find(Boolean);
}

/** Return whether the table shows a column: not what another one tells better. */
export function isShown(key) {
  // The state shows the outcome; the best of validation and the last of training are what one looks for.
  if (["outcome", "phase", "strategy"].includes(key) || key.startsWith("last:val_")) return false;
  return !key.startsWith("best:") || key.startsWith("best:val_");
}

function searchable(run) {
  const texts = Object.values(run.values).filter((value) => typeof value === "string");
  const { name, folder, state, reason, job } = run;
  return [name, folder, state, reason, job?.name, job?.namespace, ...texts].filter(Boolean).join(" ");
}

/** Return the runs in order of a column; runs without a value come last in both directions. */
export function sortRuns(runs, { key, descending }) {
  return [...runs].sort((one, other) => {
    const [a, b] = [valueOf(one, key), valueOf(other, key)];
    if (a === null || b === null) return (a === null) - (b === null);
    return descending && typeof a === typeof b ? inOrder(b, a) : inOrder(a, b);
  });
}

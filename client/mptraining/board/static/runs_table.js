// The list of runs as a value: filter, order, groups, columns. No drawing here.

/** Return the value of a column, or of the run's own fields `name` and `state`. */
export function valueOf(run, key) {
  return key === "name" || key === "state" ? run[key] : run.values[key] ?? null;
}

/** Return a predicate for the filter's text, or {error}. Words, /regex/, and column=text, column<number, column>number. */
export function parseFilter(text, columns) {
  const tests = [];
  const pattern = /^\/(.*)\/i?$/.exec(text.trim());
  if (pattern) {
    try {
      const regex = new RegExp(pattern[1], "i");
      return { test: (run) => regex.test(searchable(run)) };
    } catch (error) {
      return { error: `not a regular expression: ${error.message.replace(/^Invalid regular expression: /, "")}` };
    }
  }
  for (const word of text.trim().toLowerCase().split(/\s+/).filter(Boolean)) {
    const condition = /^([^=<>]+)(=|<|>)(.+)$/.exec(word);
    if (!condition) {
      tests.push((run) => searchable(run).toLowerCase().includes(word));
      continue;
    }
    const [, name, operator, wanted] = condition;
    const column = findColumn(name, columns);
    if (!column) return { error: `no column "${name}"; columns are in the menu Columns` };
    if (operator !== "=" && Number.isNaN(Number(wanted))) return { error: `"${word}": expected a number after ${operator}` };
    tests.push((run) => {
      const value = valueOf(run, column.key);
      if (value === null) return false;
      if (operator === "=") return String(value).toLowerCase() === wanted || Number(wanted) === value;
      return operator === "<" ? value < Number(wanted) : value > Number(wanted);
    });
  }
  return { test: (run) => tests.every((each) => each(run)) };
}

/** Return the column that was typed: its name, its beginning or a part of it; of several the one that is shown. */
export function findColumn(name, columns) {
  const plain = (text) => text.toLowerCase().replace(/[\s_:]/g, "");
  const shownFirst = [...columns].sort((one, other) => isShownAtFirst(other.key) - isShownAtFirst(one.key));
  const all = [{ key: "name", title: "name" }, { key: "state", title: "state" }, ...shownFirst];
  const names = (each) => [plain(each.key), plain(each.title), plain(each.key.replace(/^(best|last):/, ""))];
  const wanted = plain(name);
  return (
    all.find((each) => names(each).includes(wanted)) ??
    all.find((each) => names(each).some((other) => other.startsWith(wanted))) ??
    all.find((each) => names(each).some((other) => other.includes(wanted)))
  );
}

/** Return whether a column is shown before the reader has chosen: not what another column tells better. */
export function isShownAtFirst(key) {
  // The state shows the outcome; the best of validation and the last of training are what one looks for.
  return !["outcome", "phase", "strategy"].includes(key) && !key.startsWith("last:val_") && (!key.startsWith("best:") || key.startsWith("best:val_"));
}

function searchable(run) {
  const values = Object.values(run.values).filter((each) => typeof each === "string");
  return [run.name, run.folder, run.state, run.reason, run.job?.name, run.job?.namespace, ...values].filter(Boolean).join(" ");
}

/** Return the runs in order of a column; runs without a value come last in both directions. */
export function sortRuns(runs, { key, descending }) {
  const direction = descending ? -1 : 1;
  return [...runs].sort((one, other) => {
    const [a, b] = [valueOf(one, key), valueOf(other, key)];
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a === "number" && typeof b === "number") return direction * (a - b);
    // NaN is a string.
    if (typeof a !== typeof b) return (typeof a === "string") - (typeof b === "string");
    return direction * String(a).localeCompare(String(b), "en", { numeric: true });
  });
}

/** Return [{value, runs}] by the values of a column, in the order in which they appear; one group without a column. */
export function groupRuns(runs, key) {
  if (!key) return [{ value: null, runs }];
  const groups = new Map();
  for (const run of runs) {
    const value = valueOf(run, key);
    if (!groups.has(value)) groups.set(value, []);
    groups.get(value).push(run);
  }
  return [...groups].map(([value, members]) => ({ value, runs: members }));
}

/** Split the columns into those in which the runs differ, and the settings that all runs share. */
export function splitShared(runs, columns) {
  if (runs.length < 2) return { differing: columns, shared: [] };
  const same = (column) => {
    const first = valueOf(runs[0], column.key);
    const setting = column.kind === "text" || SETTINGS.has(column.key);
    return setting && first !== null && runs.every((each) => valueOf(each, column.key) === first);
  };
  return { differing: columns.filter((each) => !same(each)), shared: columns.filter(same) };
}

const SETTINGS = new Set(["replicas", "learningRate", "globalBatchSize", "seed", "epochs", "restarts", "recoveries"]);

// Which charts are drawn of which series, in which order, under which titles.

import { readable } from "../format.js";

// Series of one quantity share a chart where a single run is drawn; the first is the one to compare runs by.
const SYSTEM = [
  ["GPU utilization", "deviceUtilizationPercent"],
  ["GPU or TPU memory", "deviceMemoryUsedBytes", "deviceMemoryPeakBytes", "deviceMemoryTotalBytes"],
  ["GPU power", "devicePowerWatts"],
  ["GPU temperature", "deviceTemperatureCelsius"],
  ["CPU", "cpuPercent"],
  ["RAM", "memoryUsedBytes", "memoryLimitBytes"],
  ["Peak memory of the process", "peakMemoryBytes"],
  ["Waiting for input", "inputBoundPercent"],
  ["Disk", "diskReadBytesPerSecond", "diskWriteBytesPerSecond"],
  ["Network", "networkReceiveBytesPerSecond", "networkSendBytesPerSecond"],
  ["Input from buckets", "inputBytesPerSecond"],
  ["Examples per second", "examplesPerSecond"],
  ["Time per step", "stepSeconds"],
];
// Above that many runs, training and validation have charts of their own.
const MOST_SHARED = 3;

/** Return [{title, charts: [{title, names}]}] for so many runs; without series there is no section. */
export function chartSections({ training = [], validation = [], numbers = [], system = [] }, runs) {
  return [
    { title: runs === 1 ? "Training and validation" : "Metrics", charts: metricCharts(training, validation, runs <= MOST_SHARED) },
    { title: "Numbers", charts: numbers.map((name) => ({ title: readable(name), names: [name] })) },
    { title: "System", charts: systemCharts(system, runs === 1) },
  ].filter((each) => each.charts.length);
}

/** Return the charts of metrics, the loss first: a metric and its validation in one chart or in two. */
export function metricCharts(training, validation, shared) {
  const known = new Set([...training, ...validation]);
  const bases = [...new Set([...training, ...validation.map((each) => each.replace(/^val_/, ""))])];
  return bases
    .sort((one, other) => (other === "loss") - (one === "loss"))
    .map((base) => [base, `val_${base}`].filter((each) => known.has(each)))
    .flatMap((names) => (shared ? [names] : names.toReversed().map((each) => [each])))
    .map((names) => ({ title: readable(names.length > 1 ? names[0] : names.at(-1)), names }));
}

function systemCharts(names, single) {
  const known = new Set(names);
  const charts = [];
  for (const [title, ...series] of SYSTEM) {
    const found = series.filter((each) => known.has(each));
    for (const each of found) known.delete(each);
    if (found.length && single) charts.push({ title, names: found });
    else if (found.length) charts.push(...found.filter((each) => !/(Total|Limit|Peak)Bytes$/.test(each) || each === found[0]).map((each) => ({ title: found.length > 1 && /PerSecond$/.test(each) ? readable(each) : title, names: [each] })));
  }
  return [...charts, ...[...known].map((name) => ({ title: readable(name), names: [name] }))];
}

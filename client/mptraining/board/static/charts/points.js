// Curves as numbers: smoothing, the part in view, ranges of axes, values at a cursor. No drawing here.

/** Return `ys` smoothed as TensorBoard does: exponential moving average with `weight` in [0, 1), debiased. */
export function smoothed(ys, weight) {
  if (!weight) return ys;
  let [sum, share] = [0, 0];
  return ys.map((y) => {
    if (y === null) return null;
    sum = sum * weight + (1 - weight) * y;
    share = share * weight + (1 - weight);
    return sum / share;
  });
}

/** Return the points at which the value changed: a validation is reported again with each step until the next one. */
export function changes(xs, ys) {
  const kept = xs.map((_, at) => at).filter((at) => at === 0 || ys[at] !== ys[at - 1]);
  return [kept.map((at) => xs[at]), kept.map((at) => ys[at])];
}

/** Return the points from `from` to `to` and one more on each side, so that lines reach the edges. */
export function clipped(xs, ys, from, to) {
  if (from === undefined || from === null) return [xs, ys];
  const first = Math.max(0, lowerBound(xs, from) - 1);
  const last = Math.min(xs.length, lowerBound(xs, to) + 2);
  return [xs.slice(first, last), ys.slice(first, last)];
}

/** Return the first index whose x is not below `value`; xs are sorted. */
export function lowerBound(xs, value) {
  let [low, high] = [0, xs.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Return the index of the point nearest to `x` that has a value; -1 if there is none, or x is beyond the curve. */
export function nearestIndex(xs, ys, x) {
  if (!xs.length) return -1;
  const margin = (xs[xs.length - 1] - xs[0]) * 0.02;
  if (x < xs[0] - margin || x > xs[xs.length - 1] + margin) return -1;
  let index = Math.min(lowerBound(xs, x), xs.length - 1);
  if (index > 0 && x - xs[index - 1] < xs[index] - x) index -= 1;
  for (let step = 0; step < 4; step += 1) {
    if (ys[index - step] !== null && ys[index - step] !== undefined) return index - step;
    if (ys[index + step] !== null && ys[index + step] !== undefined) return index + step;
  }
  return -1;
}

function quantile(sorted, share) {
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}

/**
 * Return the range of y to draw: {low, high, hidden, extreme}.
 *
 * With `cut`, values far from what most runs do are left outside: `hidden` counts them and `extreme` is the farthest.
 * The usual range is that of the run with the (lower) median of the runs' 95 % quantiles, so that one diverged run
 * among two does not decide.
 */
export function valueRange(curves, cut) {
  const all = curves.map((ys) => ys.filter((y) => y !== null)).filter((ys) => ys.length);
  if (!all.length) return { low: 0, high: 1, hidden: 0, extreme: null };
  let [low, high] = [Infinity, -Infinity];
  for (const ys of all) for (const y of ys) [low, high] = [Math.min(low, y), Math.max(high, y)];
  if (!cut) return { low, high, hidden: 0, extreme: null };
  const usual = all
    .map((ys) => [...ys].sort((one, other) => one - other))
    .map((ys) => [quantile(ys, 0.05), quantile(ys, 0.95)])
    .sort((one, other) => one[1] - other[1])[Math.floor((all.length - 1) / 2)];
  const margin = 25 * Math.max(usual[1] - usual[0], Math.abs(usual[1]) * 0.04, 1e-12);
  const [bottom, top] = [usual[0] - margin, usual[1] + margin];
  if (low >= bottom && high <= top) return { low, high, hidden: 0, extreme: null };
  let hidden = 0;
  let extreme = 0;
  let [shownLow, shownHigh] = [Infinity, -Infinity];
  for (const ys of all) {
    for (const y of ys) {
      if (y < bottom || y > top) {
        hidden += 1;
        if (Math.abs(y) > Math.abs(extreme)) extreme = y;
      } else [shownLow, shownHigh] = [Math.min(shownLow, y), Math.max(shownHigh, y)];
    }
  }
  return { low: shownLow, high: shownHigh, hidden, extreme };
}

/** Return whether a logarithmic axis tells more: all values positive, and over a factor of 30 from low to high. */
export function wantsLogarithm({ low, high }) {
  return low > 0 && high / low >= 30;
}

/** Return the ends of a linear axis, a little beyond the values; 0 is an end if it is near. */
export function paddedRange(low, high) {
  if (low === high) return low === 0 ? [-0.05, 1] : [low - Math.abs(low) * 0.1, high + Math.abs(high) * 0.1];
  const margin = (high - low) * 0.06;
  const bottom = low >= 0 && low < (high - low) * 0.25 ? 0 : low - margin;
  return [bottom, high + margin];
}

"""Spread of a run's values, and which runs are the best beyond it.

The spread of a value is a standard deviation, the largest of what is known:

- of its own series: the scatter of a metric's last values, or of the step times that the run reported, estimated from
  successive differences, so that a steady trend counts little;
- of its sample: an accuracy p of n examples has at least sqrt(p (1 - p) / n);
- of repetitions: runs in the comparison that differ in the seed alone scatter as they do.

Two values differ if their difference is above two standard deviations of it. A value of which a run has only one number
(total time, peak memory, the only validation of a run) differs from another by at least 5 % besides.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from itertools import pairwise
from statistics import median

from mptraining.comparison.values import Better, Value
from mptraining.runs import Run

# Values of a metric that count, the last ones.
LAST_VALUES = 6
# Differences below which a series has no spread: the median of fewer says little.
FEWEST_DIFFERENCES = 3
DEVIATIONS = 2.0
ONE_NUMBER = 0.05
# The same for a percentage, in points.
ONE_PERCENTAGE = 5.0
# Median of the absolute difference of two values of a normal distribution, in standard deviations.
_MEDIAN_DIFFERENCE = 0.6745 * math.sqrt(2)


def scatter(values: Sequence[float]) -> float | None:
    """Return the standard deviation of the noise in a series; None if the series is too short."""
    differences = [abs(after - before) for before, after in pairwise(values)]
    return median(differences) / _MEDIAN_DIFFERENCE if len(differences) >= FEWEST_DIFFERENCES else None


def metric_spread(run: Run, name: str) -> float | None:
    """Return the spread of the last value of a metric; None if unknown."""
    value = run.metrics.get(name)
    if value is None or not math.isfinite(value):
        return None
    finite = [each for each in run.history.per_epoch(name) if math.isfinite(each)]
    return _largest(scatter(finite[-LAST_VALUES:]), _sampling_error(run, name, value))


def step_time_spread(run: Run) -> float | None:
    """Return the spread of the time per step as a share of it; the first report, which compiles, does not count."""
    times = [value for _, value in run.history.series("step_seconds")][1:]
    found = scatter(times)
    return None if found is None else found / median(times)


def repetition_spread(values: Sequence[Value], groups: Sequence[Hashable]) -> float | None:
    """Return the pooled standard deviation within groups of repeated runs; None without repetitions."""
    squares, freedom = 0.0, 0
    for group in set(groups):
        inside = [
            float(value)
            for value, each in zip(values, groups, strict=True)
            if each == group and isinstance(value, int | float) and math.isfinite(value)
        ]
        mean = sum(inside) / len(inside) if inside else 0.0
        squares += sum((value - mean) ** 2 for value in inside)
        freedom += max(0, len(inside) - 1)
    return math.sqrt(squares / freedom) if freedom else None


def best(
    values: Sequence[Value],
    texts: Sequence[str],
    direction: Better,
    *,
    able: Sequence[int],
    spreads: Sequence[float | None],
    repeated: float | None = None,
    one_number: float | None = None,
) -> tuple[int, ...]:
    """Return the indices of the best runs: the best value, and those that do not differ from it.

    Empty if all runs that are `able` to be best are among them. A difference that the `texts` do not show is none.
    `spreads` are of the runs' own values, `repeated` is that of repetitions. `one_number` is the least difference of
    values without a spread of their own, which few repetitions cannot replace; None for ONE_NUMBER of the larger value.
    """
    numbers = {at: float(value) for at in able if isinstance(value := values[at], int | float) and math.isfinite(value)}
    if direction is None or len(numbers) < 2:
        return ()
    top = (max if direction == "higher" else min)(numbers, key=lambda at: numbers[at])

    def differs(at: int) -> bool:
        if texts[at] == texts[top]:
            return False
        one, other = spreads[top], spreads[at]
        least = 0.0
        if one is None or other is None:
            least = one_number if one_number is not None else ONE_NUMBER * max(abs(numbers[at]), abs(numbers[top]))
        floor = repeated or 0.0
        noise = DEVIATIONS * math.hypot(max(one or 0.0, floor), max(other or 0.0, floor))
        return abs(numbers[at] - numbers[top]) > max(least, noise)

    found = tuple(at for at in numbers if not differs(at))
    return () if len(found) == len(numbers) else found


def _sampling_error(run: Run, name: str, value: float) -> float | None:
    """Return the standard error of an accuracy, from the number of its examples."""
    started = run.history.started
    if started is None or name.rpartition("_")[2] not in ("accuracy", "acc") or not 0 <= value <= 1:
        return None
    count = started.validation_examples if name.startswith("val_") else started.train_examples
    return math.sqrt(value * (1 - value) / count) if count else None


def _largest(*spreads: float | None) -> float | None:
    return max((each for each in spreads if each is not None), default=None)

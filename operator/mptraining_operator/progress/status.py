"""Conversion of a worker's report to `status.progress`.

Each report replaces `status.progress` as a whole; fields that an Event lacks are copied from the previous report of the
same attempt. Times are from the operator's clock, in seconds since 1970, because deadlines are counted from them and
the clocks of nodes may be wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from mptraining_api import events
from mptraining_api.status import Metric, Progress, format_time

Report = events.Progress | events.Finished

MOST_METRICS = 64
_LONGEST_NAME = 63
_LARGEST = 2**31 - 1


class Rank(IntEnum):
    """How close to its end a report is; a report of a higher rank is written without delay."""

    UNDER_WAY = 0
    LAST_STEP = 1
    FINISHED = 2


def rank(report: Report) -> Rank:
    if isinstance(report, events.Finished):
        return Rank.FINISHED
    return Rank.LAST_STEP if report.total_steps is not None and report.step >= report.total_steps else Rank.UNDER_WAY


def to_status(report: Report, previous: Progress | None, now: float) -> Progress:
    """Return the new `status.progress`. `previous` is the old one, of any attempt."""
    before = previous if previous is not None and previous.attempt == report.attempt else Progress()
    reported = _of_progress(report) if isinstance(report, events.Progress) else _of_finished(report, before)
    step = reported.get("step")
    advanced = step is not None and (before.step is None or step > before.step)
    kept = {
        # A script's report, or that of a failed attempt, may lack them.
        "precision": before.precision,
        "recoveries": before.recoveries,
        "step_time": format_time(now) if advanced else before.step_time,
    }
    fields = {**kept, **reported, "attempt": _count(report.attempt), "update_time": format_time(now)}
    return Progress(**{name: value for name, value in fields.items() if value is not None})


def _of_progress(event: events.Progress) -> dict[str, Any]:
    step, total = _count(event.step), _count(event.total_steps)
    return {
        "step": step,
        "total_steps": total,
        "epoch": _count(event.epoch),
        "percent_complete": _percent(step, total),
        "examples_per_second": _at_least_0(event.examples_per_second),
        "estimated_remaining_seconds": _count(event.estimated_remaining_seconds),
        "input_bound_percent": _within_100(event.input_bound_percent),
        "loss_scale": _at_least_0(event.loss_scale),
        **_of_precision(event),
        "metrics": _metrics(event.metrics),
    }


def _of_finished(event: events.Finished, before: Progress) -> dict[str, Any]:
    done = event.exit_code == 0
    step = _count(event.step) if event.step is not None else before.step
    # A script does not report its total steps.
    percent = 100 if done and before.total_steps is None else _percent(step, before.total_steps)
    return {
        "step": step,
        "total_steps": before.total_steps,
        "epoch": before.epoch,
        "percent_complete": percent,
        "examples_per_second": before.examples_per_second,
        "estimated_remaining_seconds": 0 if done else None,
        "input_bound_percent": before.input_bound_percent,
        "loss_scale": before.loss_scale,
        **_of_precision(event),
        "metrics": _metrics(event.metrics) or before.metrics,
    }


def _of_precision(report: Report) -> dict[str, Any]:
    """Return the precision policy in use and the number of recoveries, if the report has them."""
    reported = {
        "precision": report.precision and report.precision[:_LONGEST_NAME],
        "recoveries": _count(report.recoveries),
    }
    return {name: value for name, value in reported.items() if value not in (None, "")}


def _metrics(values: Mapping[str, float]) -> list[Metric] | None:
    """Format the metrics, loss and val_loss first, so that they are kept if there are more than MOST_METRICS."""
    names = [name for name, value in values.items() if 0 < len(name) <= _LONGEST_NAME and math.isfinite(value)]
    names.sort(key=lambda name: name not in ("loss", "val_loss"))
    return [Metric(name=name, value=f"{values[name]:.6g}") for name in names[:MOST_METRICS]] or None


def _percent(step: int | None, total: int | None) -> int | None:
    """Return the percentage of steps, rounded down, so that 100 means all steps are done."""
    if step is None or not total:
        return None
    return min(100, 100 * step // total)


def _count(value: float | None) -> int | None:
    if value is None or not math.isfinite(value):
        return None
    return max(0, min(_LARGEST, round(value)))


def _at_least_0(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else max(0.0, value)


def _within_100(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else max(0.0, min(100.0, value))

"""Conversion of a worker's report to `status.progress`.

Each report replaces `status.progress` as a whole; fields that an Event lacks are copied from the previous report of the
same attempt. Times are from the operator's clock, in seconds since 1970, because deadlines are counted from them and
the clocks of nodes may be wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mptraining_api import events
from mptraining_api.status import Metric, Progress, format_time

Report = events.Progress | events.Finished

MOST_METRICS = 64
_LONGEST_NAME = 63
_LARGEST = 2**31 - 1
_MOST_BYTES = 2**53 - 1
# Seconds; a longer wait than any job's is a mistake in MPTRAINING_MODEL_WAIT_SECONDS.
_LONGEST_KEPT = 10 * 365 * 86400.0


def to_status(report: Report, previous: Progress | None, now: float) -> Progress:
    """Return the new `status.progress`. `previous` is the old one, of any attempt."""
    before = previous if previous is not None and previous.attempt == report.attempt else Progress()
    fields = _of_progress(report) if isinstance(report, events.Progress) else _of_finished(report, before, now)
    step = fields["step"]
    advanced = step is not None and (before.step is None or step > before.step)
    fields["step_time"] = format_time(now) if advanced else before.step_time
    # A script's report, or that of a failed attempt, may lack these two.
    fields["precision"] = (report.precision or "")[:_LONGEST_NAME] or before.precision
    fields["recoveries"] = before.recoveries if report.recoveries is None else _count(report.recoveries)
    killed = report.oom_kills if isinstance(report, events.Progress) else None
    fields["oom_kills"] = before.oom_kills if killed is None else _count(killed)
    fields |= {"attempt": _count(report.attempt), "update_time": format_time(now)}
    return Progress(**{name: value for name, value in fields.items() if value is not None})


def _of_progress(event: events.Progress) -> dict[str, Any]:
    step, total = _count(event.step), _count(event.total_steps)
    return {
        "step": step,
        "total_steps": total,
        "epoch": _count(event.epoch),
        "trial": _count(event.trial),
        "trials": _count(event.trials),
        "percent_complete": _percent(step, total),
        "examples_per_second": _bounded(event.examples_per_second),
        "estimated_remaining_seconds": _count(event.estimated_remaining_seconds),
        "input_bound_percent": _bounded(event.input_bound_percent, 100.0),
        "loss_scale": _bounded(event.loss_scale),
        "device_utilization_percent": _bounded(event.device_utilization_percent, 100.0),
        "device_memory_used_bytes": _count(event.device_memory_used_bytes, _MOST_BYTES),
        "metrics": _metrics(event.metrics),
    }


def _of_finished(event: events.Finished, before: Progress, now: float) -> dict[str, Any]:
    done = event.exit_code == 0
    step = _count(event.step) if event.step is not None else before.step
    kept = _bounded(event.kept_seconds, _LONGEST_KEPT)
    return {
        **{name: getattr(before, name) for name in Progress.model_fields},
        "step": step,
        # A script does not report its total steps.
        "percent_complete": 100 if done and before.total_steps is None else _percent(step, before.total_steps),
        "estimated_remaining_seconds": 0 if done else None,
        "metrics": _metrics(event.metrics) or before.metrics,
        # The report may arrive several times.
        "model_kept_until": before.model_kept_until or (format_time(now + kept) if kept and done else None),
    }


def _metrics(values: Mapping[str, float]) -> list[Metric] | None:
    """Format the metrics, loss and val_loss first, so that they are kept if there are more than MOST_METRICS."""
    names = [name for name in values if 0 < len(name) <= _LONGEST_NAME]
    names.sort(key=lambda name: name not in ("loss", "val_loss"))
    return [
        Metric(name=name, value=f"{values[name]:.6g}".replace("nan", "NaN")) for name in names[:MOST_METRICS]
    ] or None


def _percent(step: int | None, total: int | None) -> int | None:
    """Return the percentage of steps, rounded down, so that 100 means all steps are done."""
    return min(100, 100 * step // total) if step is not None and total else None


def _count(value: float | None, most: float = _LARGEST) -> int | None:
    bounded = _bounded(value, most)
    return None if bounded is None else round(bounded)


def _bounded(value: float | None, most: float = math.inf) -> float | None:
    return None if value is None or not math.isfinite(value) else max(0.0, min(most, value))

"""One row of the board's table of runs: pure functions of its events' ends, its documents and its job's status."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mptraining.comparison.quantities import (
    best,
    better_direction,
    job_settings,
    keras_text,
    nested,
    step_seconds_direction,
)
from mptraining.display.text import readable
from mptraining.runs.facts import Document, RunFacts
from mptraining_api.model import json_value
from mptraining_api.outcomes import run_state

# A run without a result counts as running until it has reported nothing for this time. The trainer reports every few
# seconds, but not while it compiles, validates or saves.
SILENT_SECONDS = 120.0
# State of a run by the phase of its job; all others wait.
STATES = {"Running": "Running", "Suspended": "Stopped", "Succeeded": "Succeeded", "Failed": "Failed"}


def state(facts: RunFacts, now: float) -> tuple[str, str]:
    """Return state and reason of a run at the time `now`."""
    job = facts.job
    if job is not None:
        return STATES.get(job.phase, "Waiting"), job.reason
    ended = facts.launches.end(facts.result)
    if ended is not None:
        return run_state(ended.reason), f"{ended.reason}: {ended.message}" if ended.message else ended.reason
    if facts.launches and now - facts.launches[-1].last < SILENT_SECONDS:
        return "Running", ""
    return "Unfinished", "no result, and no event for some time" if facts.launches else "no event"


def progress(facts: RunFacts) -> dict[str, Any] | None:
    last = facts.launches.progress
    if last is None:
        return dict(facts.job.progress) if facts.job and facts.job.progress else None
    total = last.total_steps
    over = facts.launches.end(facts.result) is not None
    fields = {
        "step": last.step,
        "totalSteps": total,
        "percent": min(100, 100 * last.step // total) if total else None,
        "remainingSeconds": None if over else _finite(last.estimated_remaining_seconds),
    }
    return {key: value for key, value in fields.items() if value is not None}


def row(facts: RunFacts, now: float) -> dict[str, Any]:
    """Return the run as the API's JSON object."""
    shown_state, reason = state(facts, now)
    job = facts.job
    return {
        "id": facts.run_id,
        "name": facts.name,
        "folder": facts.folder,
        "job": None if job is None else {"namespace": job.namespace, "name": job.name},
        "state": shown_state,
        "reason": reason,
        "progress": progress(facts),
        "values": values(facts),
    }


def values(facts: RunFacts) -> dict[str, Any]:
    """Return the values of the row's columns; unknown ones are absent."""
    job = facts.resolved or {}
    result, launches = facts.result, facts.launches
    ended, latest, report = launches.end(result), result or launches.progress, result or launches.started
    version = launches.started or result
    settings = job_settings(job, facts.highest_rate)
    known: dict[str, Any] = dict(facts.job.values) if facts.job else {}
    known |= _known(
        {
            "outcome": ended and ended.reason,
            "phase": facts.job.phase if facts.job else None,
            "policy": launches.precision(result) or nested(job, "precision", "policy"),
            "jitCompile": settings["xla"],
            "accelerator": nested(job, "accelerator", "title"),
            "replicas": (report and report.replicas_in_sync) or job.get("replicas"),
            "strategy": (report and report.strategy) or job.get("strategy"),
            "optimizer": settings["optimizer"],
            "learningRate": settings["learning_rate"],
            "globalBatchSize": (report and report.global_batch_size) or job.get("globalBatchSize"),
            "seed": settings["seed"],
            "epochs": settings["epochs"],
            "stepSeconds": latest and latest.step_seconds,
            "examplesPerSecond": latest and latest.examples_per_second,
            "totalSeconds": launches.seconds(result),
            "peakMemoryBytes": latest and latest.peak_memory_bytes,
            "inputBoundPercent": latest and latest.input_bound_percent,
            "restarts": len(launches) - 1 if launches else None,
            "recoveries": latest and latest.recoveries,
            "startTime": launches[0].first if launches else None,
            "keras": keras_text((version and version.keras) or job.get("keras")),
            "program": _program(job),
        }
    )
    for name, value in launches.metrics(result, facts.last).items():
        known[f"last:{name}"] = json_value(value)
    for name, value in (facts.best or {}).items():
        known[f"best:{name}"] = value
    return _known(known)


def _program(job: Document) -> str | None:
    program = job.get("program") or {}
    if isinstance(program.get("ensemble"), Mapping):
        members = program["ensemble"].get("members")
        return f"ensemble of {len(members) if isinstance(members, list) else 0}"
    named_by = (("application", "name"), ("function", "entryPoint"), ("script", "path"), ("prediction", "model"))
    for kind, key in named_by:
        if isinstance(program.get(kind), Mapping):
            named = program[kind].get(key)
            return str(named or next(iter(program[kind].values()), kind))
    return None


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in values.items()
        if value is not None and not (isinstance(value, float) and not math.isfinite(value))
    }


# (key, title, kind, better) in the order of the table; metrics come after the first two.
_COLUMNS: tuple[tuple[str, str, str, str | None], ...] = (
    ("namespace", "namespace", "text", None),
    ("outcome", "outcome", "text", None),
    ("phase", "phase", "text", None),
    ("policy", "precision", "text", None),
    ("jitCompile", "XLA", "text", None),
    ("accelerator", "accelerator", "text", None),
    ("replicas", "replicas", "number", None),
    ("strategy", "strategy", "text", None),
    ("program", "program", "text", None),
    ("optimizer", "optimizer", "text", None),
    ("learningRate", "learning rate", "number", None),
    ("globalBatchSize", "global batch size", "number", None),
    ("epochs", "epochs", "number", None),
    ("seed", "seed", "number", None),
    ("stepSeconds", "time per step", "seconds", "lower"),
    ("examplesPerSecond", "examples/s", "number", "higher"),
    ("totalSeconds", "total time", "seconds", "lower"),
    ("peakMemoryBytes", "peak memory", "bytes", "lower"),
    ("inputBoundPercent", "waited for data", "percent", "lower"),
    ("restarts", "restarts", "number", "lower"),
    ("recoveries", "recoveries", "number", "lower"),
    ("startTime", "started", "time", None),
    ("keras", "Keras", "text", None),
)
_BEFORE_METRICS = 5


def columns(rows: Iterable[Document]) -> list[dict[str, Any]]:
    """Return the columns that any of the rows has a value for."""
    present = dict.fromkeys(key for row in rows for key in row["values"])
    fixed = [_column(*column) for column in _COLUMNS if column[0] in present]
    names = [key for key in present if key.startswith(("best:", "last:"))]
    metrics = [_metric_column(key) for key in sorted(names, key=_metric_order)]
    first = [column for column in fixed if column["key"] in {key for key, *_ in _COLUMNS[:_BEFORE_METRICS]}]
    return [*first, *metrics, *fixed[len(first) :]]


def mark_best(rows: Sequence[dict[str, Any]], columns: Sequence[dict[str, Any]]) -> None:
    """Add `best` to each row: the keys of the columns in which it is the best run that succeeded, or a tie of it."""
    able = [at for at, row in enumerate(rows) if row["state"] == "Succeeded"]
    batch_sizes = [row["values"].get("globalBatchSize") for row in rows]
    for row in rows:
        row["best"] = []
    for column in columns:
        key, better = column["key"], column["better"]
        if key == "stepSeconds":
            better = step_seconds_direction(batch_sizes)
        for at in best([row["values"].get(key) for row in rows], better, able=able):
            rows[at]["best"].append(key)


def _column(key: str, title: str, kind: str, better: str | None) -> dict[str, Any]:
    return {"key": key, "title": title, "kind": kind, "better": better}


def _metric_order(key: str) -> tuple[bool, str, bool]:
    which, _, name = key.partition(":")
    return not name.startswith("val_"), name, which == "last"


def _metric_column(key: str) -> dict[str, Any]:
    which, _, name = key.partition(":")
    return _column(key, f"{which} {readable(name)}", "number", better_direction(name))

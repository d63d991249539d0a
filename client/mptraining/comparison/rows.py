"""One row of the board's table of runs: pure functions of its events' ends, its documents and its job's status."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mptraining.comparison import (
    best,
    better_direction,
    job_settings,
    keras_text,
    metric_title,
    nested,
    step_seconds_direction,
)
from mptraining.runs.facts import Document, RunFacts
from mptraining_api.model import json_value
from mptraining_api.outcomes import run_state

# A run without a result counts as running until it has reported nothing for this time. The trainer reports every few
# seconds, but not while it compiles, validates or saves.
SILENT_SECONDS = 120.0
# State of a run by the phase of its job; all others wait.
STATES = {"Running": "Running", "Suspended": "Stopped", "Succeeded": "Succeeded", "Failed": "Failed"}


def valid_result(facts: RunFacts) -> Document | None:
    """Return the result, unless a later attempt has started since."""
    started = facts.launches[-1].started if facts.launches else None
    if facts.result is not None and started is not None and started.attempt > int(facts.result.get("attempt", 0)):
        return None
    return facts.result


def state(facts: RunFacts, now: float) -> tuple[str, str]:
    """Return state and reason of a run at the time `now`."""
    job = facts.job
    if job is not None:
        return STATES.get(job.phase, "Waiting"), job.reason
    ended = _end(facts)
    if ended is not None:
        reason, message = ended
        return run_state(reason), f"{reason}: {message}" if message else reason
    if facts.launches and now - facts.launches[-1].last < SILENT_SECONDS:
        return "Running", ""
    return "Unfinished", "no result, and no event for some time" if facts.launches else "no event"


def outcome(facts: RunFacts) -> str | None:
    """Return the CamelCase reason of the end; None before it."""
    ended = _end(facts)
    return ended[0] if ended else None


def _end(facts: RunFacts) -> tuple[str, str] | None:
    """Return reason and message of the end."""
    result = valid_result(facts)
    if result is not None:
        return str(result.get("reason", "")), str(result.get("message", ""))
    finished = facts.launches[-1].finished if facts.launches else None
    return None if finished is None else (finished.reason, finished.message)


def progress(facts: RunFacts) -> dict[str, Any] | None:
    last = _last_progress(facts)
    if last is None:
        return dict(facts.job.progress) if facts.job and facts.job.progress else None
    total = last.total_steps
    found = {
        "step": last.step,
        "totalSteps": total,
        "percent": min(100, 100 * last.step // total) if total else None,
        "remainingSeconds": _finite(last.estimated_remaining_seconds) if _end(facts) is None else None,
    }
    return {key: value for key, value in found.items() if value is not None}


def _last_progress(facts: RunFacts) -> Any:
    return next((launch.progress for launch in reversed(facts.launches) if launch.progress is not None), None)


def row(facts: RunFacts, now: float) -> dict[str, Any]:
    """Return the run as the API's JSON object."""
    found, reason = state(facts, now)
    job = facts.job
    return {
        "id": facts.id,
        "name": facts.name,
        "folder": facts.folder,
        "job": None if job is None else {"namespace": job.namespace, "name": job.name},
        "state": found,
        "reason": reason,
        "progress": progress(facts),
        "values": values(facts),
    }


def values(facts: RunFacts) -> dict[str, Any]:
    """Return the values of the row's columns; unknown ones are absent."""
    job = facts.resolved or {}
    result = valid_result(facts) or {}
    last = _last_progress(facts)
    started = next((launch.started for launch in reversed(facts.launches) if launch.started is not None), None)
    settings = job_settings(job, facts.highest_rate)
    found: dict[str, Any] = dict(facts.job.values) if facts.job else {}
    found |= _known(
        {
            "outcome": outcome(facts),
            "phase": facts.job.phase if facts.job else None,
            "policy": result.get("precision") or (started and started.precision) or nested(job, "precision", "policy"),
            "jitCompile": settings["xla"],
            "accelerator": nested(job, "accelerator", "title"),
            "replicas": result.get("replicasInSync") or (started and started.replicas_in_sync) or job.get("replicas"),
            "strategy": result.get("strategy") or (started and started.strategy) or job.get("strategy"),
            "optimizer": settings["optimizer"],
            "learningRate": settings["learning_rate"],
            "globalBatchSize": job.get("globalBatchSize") or (started and started.global_batch_size),
            "seed": settings["seed"],
            "epochs": settings["epochs"],
            "stepSeconds": result.get("stepSeconds") or (last and last.step_seconds),
            "examplesPerSecond": result.get("examplesPerSecond") or (last and last.examples_per_second),
            "totalSeconds": total_seconds(facts),
            "peakMemoryBytes": result.get("peakMemoryBytes") or (last and last.peak_memory_bytes),
            "inputBoundPercent": result.get("inputBoundPercent", last and last.input_bound_percent),
            "restarts": len(facts.launches) - 1 if facts.launches else None,
            "recoveries": result.get("recoveries", last and last.recoveries),
            "startTime": facts.launches[0].first if facts.launches else None,
            "keras": keras_text((started and started.keras) or result.get("keras") or job.get("keras")),
            "program": _program(job),
        }
    )
    for name, value in _last_metrics(facts, result).items():
        found[f"last:{name}"] = value
    for name, value in (facts.best or {}).items():
        found[f"best:{name}"] = value
    return _known(found)


def total_seconds(facts: RunFacts) -> float | None:
    """Return the run's total time; the result holds only the time of its own attempt."""
    result = valid_result(facts)
    if result is not None and len(facts.launches) <= 1:
        return _finite(result.get("seconds"))
    return sum(launch.last - launch.begin for launch in facts.launches) if facts.launches else None


def _last_metrics(facts: RunFacts, result: Document) -> Mapping[str, float | str]:
    """Return the last values; NaN is the string of the events."""
    if result.get("metrics"):
        return dict(result["metrics"])
    finished = facts.launches[-1].finished if facts.launches else None
    last = {**facts.last, **(finished.metrics if finished else {})}
    return {name: json_value(value) for name, value in last.items()}


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


def _known(found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in found.items()
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
    present = dict.fromkeys(key for each in rows for key in each["values"])
    fixed = [_column(*each) for each in _COLUMNS if each[0] in present]
    metrics = [_metric_column(key) for key in sorted(_metrics(present), key=_metric_order)]
    first = [each for each in fixed if each["key"] in {key for key, *_ in _COLUMNS[:_BEFORE_METRICS]}]
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


def _metrics(keys: Iterable[str]) -> Sequence[str]:
    return [key for key in keys if key.startswith(("best:", "last:"))]


def _metric_order(key: str) -> tuple[bool, str, bool]:
    which, _, name = key.partition(":")
    return not name.startswith("val_"), name, which == "last"


def _metric_column(key: str) -> dict[str, Any]:
    which, _, name = key.partition(":")
    return _column(key, f"{which} {metric_title(name)}", "number", better_direction(name))

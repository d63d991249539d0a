"""The page of one run: decisions, configuration, attempts, checkpoints, events, logs and quarantined records."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from mptraining.board import rows
from mptraining.board.series import groups
from mptraining.runs.columns import Curves
from mptraining.runs.event_files import RunEvents
from mptraining.runs.facts import Document, LaunchFacts, RunFacts
from mptraining.runs.files import File
from mptraining.runs.reader import RunReader
from mptraining_api import run_folder
from mptraining_api.events import Event, Finished, Notice, Recovered, Saved, Started
from mptraining_api.problems import Problem

MOST_QUARANTINED = 1000
# Shown elsewhere on the page, or long and of no interest to a reader.
_NOT_SHOWN = ("choices", "placement", "version", "source")
# As the trainer's message names it: the layer itself, or the layer in the path of its weight.
_LAYER = re.compile(r"(?:layer|weight|gradient) '([^'/]+)")
_STEP = re.compile(r"step (\d+)")

# An event with its attempt and its worker.
AnEvent = tuple[int, int, Event]


def details(facts: RunFacts, reader: RunReader | None, now: float) -> dict[str, Any]:
    """Return the answer of /api/run/ID. Raises Problem if the storage fails."""
    curves = reader.curves() if reader else Curves()
    chief: list[AnEvent] = [(attempt, 0, event) for attempt, event in (reader.other_events() if reader else ())]
    others = other_workers(reader) if reader else []
    return {
        "run": rows.row(facts, now),
        "decisions": decisions(facts.resolved),
        "configuration": flattened(facts.resolved),
        "attempts": attempts(facts),
        "goodput": goodput(facts, curves),
        "checkpoints": [_checkpoint(event) for _, _, event in chief if isinstance(event, Saved)],
        "events": events([*chief, *others]),
        "logs": logs(reader.listed) if reader else [],
        "quarantine": list(quarantine(reader)) if reader else [],
        "divergence": divergence([event for _, _, event in chief]),
        "commands": commands(facts),
        "series": groups(curves.values),
    }


def decisions(resolved: Document | None) -> list[dict[str, str]]:
    """Return the choices of job.json with their reasons."""
    found = (resolved or {}).get("choices") or ()
    return [
        {"what": str(each.get("field")), "value": str(each.get("value")), "reason": str(each.get("because"))}
        for each in found
        if isinstance(each, Mapping)
    ]


def flattened(resolved: Document | None) -> dict[str, Any]:
    """Return the leaves of job.json by their paths, such as training.optimizer.config.learning_rate."""
    return dict(_leaves("", {key: each for key, each in (resolved or {}).items() if key not in _NOT_SHOWN}))


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(f"{path}.{key}" if path else str(key), each)
    elif isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
        for at, each in enumerate(value):
            yield from _leaves(f"{path}[{at}]", each)
    elif value is not None:
        yield path, value if isinstance(value, str | int | float | bool) else ", ".join(map(str, value))


def attempts(facts: RunFacts) -> list[dict[str, Any]]:
    """Return one entry for each launch. `lostSeconds`: until its end, from the step where the next one resumed."""
    return [_attempt(each, after) for each, after in itertools.zip_longest(facts.launches, facts.launches[1:])]


def _attempt(launch: LaunchFacts, after: LaunchFacts | None) -> dict[str, Any]:
    first = launch.started.first_step if launch.started else None
    last = launch.progress.step if launch.progress else first
    lost = 0.0
    if after is not None and after.started and first is not None and last is not None and last > first:
        # Steps take about the same time, so that the share of the steps is that of the time.
        again = min(last - first, max(0, last - after.started.first_step))
        lost = (launch.last - launch.begin) * again / (last - first)
    finished = launch.finished
    return {
        "number": launch.attempt,
        "start": launch.process_start,
        "end": launch.last,
        "outcome": finished.reason if finished else None,
        "message": finished.message if finished else "",
        "firstStep": first,
        "lastStep": last,
        "lostSeconds": round(lost, 3),
    }


def goodput(facts: RunFacts, curves: Curves) -> float | None:
    """Return the share of the wall time from the first process's start to the last event that advanced the training.

    Pauses between attempts, starts, and steps that were trained again do not.
    """
    if not facts.launches or not len(curves.seconds):
        return None
    wall = facts.launches[-1].last - facts.launches[0].process_start
    return max(0.0, min(1.0, (curves.total_seconds - curves.lost_seconds) / wall)) if wall > 0 else None


def _checkpoint(event: Saved) -> dict[str, Any]:
    return {name: getattr(event, name) for name in ("step", "time", "bytes", "seconds", "uri")}


def events(found: Iterable[AnEvent]) -> list[dict[str, Any]]:
    """Return the events that people read, the oldest first."""
    shown = []
    for attempt, worker, event in sorted(found, key=lambda each: each[2].time):
        level, topic, message = _text(event)
        kind = type(event).__name__
        about = {"time": event.time, "kind": kind, "level": level, "topic": topic, "message": message}
        shown.append(about | {"attempt": attempt, "worker": worker})
    return shown


def _text(event: Event) -> tuple[str, str, str]:
    """Return level, topic and message."""
    match event:
        case Notice():
            return event.level, event.topic, event.message
        case Started():
            replicas = f"{event.replicas_in_sync} replica{'s' if event.replicas_in_sync != 1 else ''}"
            return "Info", "Started", f"from step {event.first_step}, {event.precision}, {event.strategy}, {replicas}"
        case Saved():
            return "Info", "Saved", f"checkpoint of step {event.step}"
        case Recovered():
            return "Warning", "Recovered", event.message
        case Finished():
            return "Info" if event.exit_code == 0 else "Warning", event.reason, event.message
        case _:
            return "Info", event.kind, ""


def other_workers(reader: RunReader) -> list[AnEvent]:
    """Read the ends of the files of the other workers: what they warned of at their beginning and at their end."""
    events = RunEvents(reader.files, chief=False)
    events.refresh(reader.listed)
    launches = events.launches()
    return [(launch.attempt, launch.worker, event) for launch, columns in launches for _, event in columns.others]


def logs(listed: Mapping[str, File]) -> list[dict[str, Any]]:
    return [
        {"name": name.removeprefix(f"{run_folder.LOGS}/"), "bytes": file.size}
        for name, file in sorted(listed.items())
        if name.startswith(f"{run_folder.LOGS}/")
    ]


def quarantine(reader: RunReader) -> Iterator[dict[str, Any]]:
    """Yield the skipped records of all workers, at most `MOST_QUARANTINED`."""
    left = MOST_QUARANTINED
    for name, file in sorted(reader.listed.items()):
        if not name.startswith(f"{run_folder.QUARANTINE}/") or not name.endswith(".json"):
            continue
        try:
            document = msgspec.json.decode(reader.files.read(name, 0, file.size))
            records = [each for each in document["records"] if isinstance(each, Mapping)][:left]
        except (Problem, msgspec.DecodeError, KeyError, TypeError):
            continue
        for each in records:
            yield {"file": each.get("uri"), "record": each.get("record"), "reason": each.get("cause")}
        left -= len(records)


def divergence(found: Sequence[Event]) -> dict[str, Any] | None:
    """Return the last rollback or divergence: its step, and the layer that its message names."""
    for event in reversed(found):
        if isinstance(event, Recovered):
            step: int | None = event.from_step
        elif isinstance(event, Finished) and event.reason == "Diverged":
            named = _STEP.search(event.message)
            step = int(named[1]) if named else event.step
        else:
            continue
        layer = _LAYER.search(event.message)
        return {"step": step, "layer": layer[1] if layer else None, "message": event.message}
    return None


def commands(facts: RunFacts) -> list[dict[str, str]]:
    """Return commands to copy."""
    found = []
    if facts.job is not None:
        ended = facts.job.phase in ("Succeeded", "Failed")
        found += job_commands(facts.job.namespace, facts.job.name, ended=ended, flags=facts.job.flags)
    if facts.folder is not None:
        folder = shlex.quote(facts.folder)
        found.append({"title": "Compare with another run", "command": f"mptj compare {folder} OTHER"})
    return found


def job_commands(namespace: str, name: str, *, ended: bool, flags: Sequence[str] = ()) -> list[dict[str, str]]:
    """Return the commands of `mptj` for a job; `flags` select its cluster."""
    if "--namespace" not in flags:
        flags = [*flags, "--namespace", namespace]
    flags_text = shlex.join([name, *flags])
    found = [
        {"title": "Status, with the reason and the next step", "command": f"mptj status {flags_text}"},
        {"title": "Logs of the workers", "command": f"mptj logs {'' if ended else '-f '}{flags_text}"},
    ]
    if not ended:
        found.append({"title": "Wait for the end", "command": f"mptj wait {flags_text}"})
    return found

"""The page of one run: attempts, decisions, events, configuration, names of its logs and series."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mptraining.board import rows
from mptraining.comparison.quantities import flattened
from mptraining.runs.columns import Curves
from mptraining.runs.event_files import RunEvents
from mptraining.runs.facts import Document, LaunchFacts, RunFacts
from mptraining.runs.files import File
from mptraining.runs.reader import RunReader
from mptraining.runs.series import sections
from mptraining_api import run_folder
from mptraining_api.events import Event, Finished, Notice, Recovered, Saved, Started

# Shown elsewhere on the page, or long and of no interest to a reader.
_NOT_SHOWN = ("choices", "placement", "version", "source")

# An event with its attempt and its worker.
WorkerEvent = tuple[int, int, Event]


def details(facts: RunFacts, reader: RunReader | None, now: float) -> dict[str, Any]:
    """Return the answer of /api/run/ID. Raises Problem if the storage fails."""
    curves = reader.curves() if reader else Curves()
    row = rows.row(facts, now)
    return {
        "run": row,
        "columns": rows.columns([row]),
        "decisions": decisions(facts.resolved),
        "configuration": dict(flattened(facts.resolved, _NOT_SHOWN)),
        "attempts": attempts(facts, curves.lost_seconds),
        "events": events(_all_events(reader)) if reader else [],
        "logs": logs(reader.listed) if reader else [],
        "commands": commands(facts),
        "charts": sections(curves.values, single=True),
    }


def decisions(resolved: Document | None) -> list[dict[str, str]]:
    """Return the choices of job.json with their reasons."""
    choices = (resolved or {}).get("choices") or ()
    return [
        {"what": str(choice.get("field")), "value": str(choice.get("value")), "reason": str(choice.get("because"))}
        for choice in choices
        if isinstance(choice, Mapping)
    ]


def attempts(facts: RunFacts, lost: Sequence[float]) -> list[dict[str, Any]]:
    """Return one entry for each launch. `lost` are the seconds of each whose steps were trained again."""
    # A launch may have begun since the curves were read.
    return [_attempt(launch, seconds) for launch, seconds in zip(facts.launches, [*lost, 0.0], strict=False)]


def _attempt(launch: LaunchFacts, lost: float) -> dict[str, Any]:
    first = launch.started.first_step if launch.started else None
    last = launch.progress.step if launch.progress else first
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


def _all_events(reader: RunReader) -> list[WorkerEvent]:
    """Return all events of the chief, and what other workers wrote at the beginning and the end of their files."""
    others = RunEvents(reader.files, chief=False)
    others.refresh(reader.listed)
    chief = [(attempt, 0, event) for attempt, event in reader.other_events()]
    return chief + [
        (launch.attempt, launch.worker, event) for launch, columns in others.launches() for _, event in columns.others
    ]


def events(written: Iterable[WorkerEvent]) -> list[dict[str, Any]]:
    """Return the events that people read, the newest first."""
    shown = []
    for attempt, worker, event in sorted(written, key=lambda item: item[2].time, reverse=True):
        level, topic, message = _text(event)
        about = {"time": event.time, "level": level, "topic": topic, "message": message}
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


def logs(listed: Mapping[str, File]) -> list[dict[str, Any]]:
    """Return the names and sizes of what the workers printed."""
    prefix = f"{run_folder.LOGS}/"
    files = sorted((name, file) for name, file in listed.items() if name.startswith(prefix))
    return [{"name": name.removeprefix(prefix), "bytes": file.size} for name, file in files]


def commands(facts: RunFacts) -> list[dict[str, str]]:
    """Return commands of `mptj` to copy."""
    written = {}
    if (job := facts.job) is not None:
        namespace = [] if "--namespace" in job.flags else ["--namespace", job.namespace]
        name, ended = shlex.join([job.name, *job.flags, *namespace]), job.phase in ("Succeeded", "Failed")
        written["Status, with the reason and the next step"] = f"mptj status {name}"
        written["Logs of the workers"] = f"mptj logs {'' if ended else '-f '}{name}"
        if not ended:
            written["Wait for the end"] = f"mptj wait {name}"
    if facts.folder is not None:
        written["Compare with another run"] = f"mptj compare {shlex.quote(facts.folder)} OTHER"
    return [{"title": title, "command": command} for title, command in written.items()]

"""Answers of the board's API about sweeps."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mptraining.board.rows import RunFacts
from mptraining.board.sweeps.shown import ShownSweep
from mptraining.sweeps.folder import SweepFolder
from mptraining.sweeps.view import SweepView, counts, short_names, state_text, value_text
from mptraining_api.status import parse_time
from mptraining_api.sweep.status import SweepPhase, Trial, TrialState
from mptraining_api.sweep.trial_job import output_uri

# States of the page's badges.
_OF_PHASE = {SweepPhase.PENDING: "Waiting", SweepPhase.SUSPENDED: "Stopped"}
_OF_TRIAL = {TrialState.PROPOSED: "Waiting"}
_OBJECTIVE = "objective"


def row(shown: ShownSweep) -> dict[str, Any]:
    """Return a sweep as in the list of sweeps."""
    view = shown.view
    found, phase = view.status.best, view.status.phase or SweepPhase.PENDING
    best = None if found is None else {"number": found.number, "objective": found.objective, "values": found.parameters}
    ended = view.finished
    interrupted = ended is None and shown.folder is not None and not SweepFolder(Path(shown.folder)).is_driven()
    return {
        "id": shown.id,
        "name": view.name,
        "folder": shown.folder,
        "namespace": shown.namespace,
        "phase": "Interrupted" if interrupted else str(phase),
        "state": "Stopped" if interrupted else _OF_PHASE.get(phase, str(phase)),
        "message": ended.message if ended is not None else "",
        "metric": view.metric,
        "algorithm": view.sweep.spec.algorithm.name,
        "max": view.most,
        "counts": counts(view),
        "best": best,
        "seconds": view.seconds,
        "commands": [{"title": title, "command": each} for title, each in zip(_TITLES, shown.commands, strict=True)],
    }


_TITLES = ("Trials and importance in the terminal", "Write the job of the best trial")


def details(shown: ShownSweep, runs: Mapping[str, RunFacts]) -> dict[str, Any]:
    """Return the answer of /api/sweep/ID; trials link to those of `runs` that have their run folders."""
    view = shown.view
    names = short_names(view.paths)
    parameters = [
        {"key": path, "title": names[path], "kind": _kind(view, path), "better": None, "parameter": True}
        for path in view.paths
    ]
    objective = {
        "key": _OBJECTIVE,
        "title": view.metric,
        "kind": "number",
        "better": "higher" if view.maximizes else "lower",
        "parameter": False,
    }
    time = {"key": "seconds", "title": "time", "kind": "seconds", "better": None, "parameter": False}
    shares = shown.importance()
    ids = {_place(folder): id for id, each in runs.items() if (folder := each.folder or (each.job and each.job.folder))}
    return {
        "sweep": row(shown),
        "objective": objective,
        "columns": [*parameters, objective, time],
        "trials": [_trial(view, each, ids) for each in view.trials],
        "importance": [{"key": path, "title": names.get(path, path), "share": share} for path, share in shares.items()],
    }


def _place(folder: str) -> str:
    return folder.rstrip("/") if "://" in folder else os.path.abspath(folder)  # noqa: PTH100 - no links are resolved


def _trial(view: SweepView, trial: Trial, ids: Mapping[str, str]) -> dict[str, Any]:
    run = ids.get(_place(output_uri(view.sweep, trial.number) or ""))
    begin, end = (parse_time(each) if each else None for each in (trial.start_time, trial.completion_time))
    values: dict[str, Any] = {path: _plain(value) for path, value in trial.parameters.items()}
    if trial.objective is not None:
        values[_OBJECTIVE] = trial.objective
    if begin is not None and end is not None:
        values["seconds"] = end - begin
    return {
        "id": run or f"{view.name}-{trial.number}",
        "run": run,
        "number": trial.number,
        "name": f"trial {trial.number}",
        "state": _OF_TRIAL.get(trial.state, str(trial.state)),
        "shownState": state_text(trial),
        "message": trial.message,
        "ended": end or 0.0,
        "values": values,
    }


def _kind(view: SweepView, path: str) -> str:
    values = [each.parameters[path] for each in view.trials if path in each.parameters]
    return "number" if all(isinstance(each, int | float) and not isinstance(each, bool) for each in values) else "text"


def _plain(value: object) -> object:
    """Return a value that the page can draw: a number or a text."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else value_text(value)

"""Answers of the board's API about sweeps."""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mptraining.runs.facts import RunFacts
from mptraining.runs.reader import run_id
from mptraining.sweeps.cluster import view as view_of_document
from mptraining.sweeps.folder import SWEEP, SweepFolder
from mptraining.sweeps.importance import importance
from mptraining.sweeps.view import SweepView, counts, short_names, state_text, value_text
from mptraining_api.problems import InvalidData, Problem
from mptraining_api.status import parse_time
from mptraining_api.sweep.status import SweepPhase, Trial, TrialState
from mptraining_api.sweep.trial_job import output_uri


@dataclass(eq=False)
class ShownSweep:
    """One state of a sweep; `version` is another text whenever the sweep has changed.

    `folder` is None for a sweep on a cluster, whose `namespace` is given instead. Thread-safe.
    """

    sweep_id: str
    version: str
    view: SweepView
    folder: str | None
    namespace: str | None
    commands: Sequence[str]
    _importance: dict[str, float] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def importance(self) -> dict[str, float]:
        """Return the importance of each parameter; empty if it is unknown, as without Optuna."""
        with self._lock:
            if self._importance is None:
                try:
                    self._importance = importance(self.view)
                except Problem:
                    self._importance = {}
            return self._importance


def read_sweep(folder: str, known: Mapping[str, ShownSweep]) -> ShownSweep:
    """Return the sweep in a folder; the known one if it has not changed. Raises InvalidData."""
    key = run_id(f"{folder}/{SWEEP}")
    try:
        stat = os.stat(f"{folder}/{SWEEP}")  # noqa: PTH116 - asked twice a second
    except OSError as error:
        raise InvalidData(f"{folder}/{SWEEP}", error.strerror or "cannot be read") from None
    # Every write is a new file.
    version = f"{stat.st_mtime_ns}-{stat.st_ino}-{stat.st_size}"
    before = known.get(key)
    if before is not None and before.version == version:
        return before
    stored = SweepFolder(Path(folder)).read()
    if stored is None:
        raise InvalidData(f"{folder}/{SWEEP}", "was deleted")
    commands = [shlex.join(["mptj", "sweep", verb, folder]) for verb in ("compare", "job")]
    return ShownSweep(key, version, SweepView(*stored, folder), folder=folder, namespace=None, commands=commands)


def cluster_sweep(
    document: Mapping[str, Any], cluster: str, known: Mapping[str, ShownSweep], flags: Sequence[str]
) -> ShownSweep:
    """Return a sweep of a cluster; the known one if it has not changed. Raises ClusterProblem."""
    metadata = document["metadata"]
    namespace, name = str(metadata.get("namespace")), str(metadata["name"])
    key = run_id(f"sweep/{metadata['uid']}")
    before = known.get(key)
    if before is not None and before.version == metadata["resourceVersion"]:
        return before
    commands = [shlex.join(["mptj", "sweep", verb, name, *flags]) for verb in ("compare", "job")]
    seen = view_of_document(document, cluster)
    return ShownSweep(key, metadata["resourceVersion"], seen, folder=None, namespace=namespace, commands=commands)


# States of the page's badges.
_OF_PHASE = {SweepPhase.PENDING: "Waiting", SweepPhase.SUSPENDED: "Stopped"}
_OF_TRIAL = {TrialState.PROPOSED: "Waiting"}
_OBJECTIVE = "objective"


def row(shown: ShownSweep) -> dict[str, Any]:
    """Return a sweep as in the list of sweeps."""
    view = shown.view
    best, phase = view.status.best, view.status.phase or SweepPhase.PENDING
    ended = view.finished
    interrupted = ended is None and shown.folder is not None and not SweepFolder(Path(shown.folder)).is_driven()
    return {
        "id": shown.sweep_id,
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
        "best": best and {"number": best.number, "objective": best.objective, "values": best.parameters},
        "seconds": view.seconds,
        "commands": [{"title": title, "command": line} for title, line in zip(_TITLES, shown.commands, strict=True)],
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
    folders = {key: run.folder or (run.job and run.job.folder) for key, run in runs.items()}
    ids = {_absolute(folder): key for key, folder in folders.items() if folder}
    return {
        "sweep": row(shown),
        "objective": objective,
        "columns": [*parameters, objective, time],
        "trials": [_trial(view, trial, ids) for trial in view.trials],
    }


def importance_of(shown: ShownSweep) -> list[dict[str, Any]]:
    """Return the answer of /api/importance/ID: the share of each parameter, the largest first."""
    names = short_names(shown.view.paths)
    return [{"title": names.get(path, path), "share": share} for path, share in shown.importance().items()]


def _absolute(folder: str) -> str:
    return folder.rstrip("/") if "://" in folder else os.path.abspath(folder)  # noqa: PTH100 - no links are resolved


def _trial(view: SweepView, trial: Trial, ids: Mapping[str, str]) -> dict[str, Any]:
    run = ids.get(_absolute(output_uri(view.sweep, trial.number) or ""))
    begin, end = (parse_time(time) if time else None for time in (trial.start_time, trial.completion_time))
    values: dict[str, Any] = {
        path: value if _is_number(value) else value_text(value) for path, value in trial.parameters.items()
    }
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
    values = [trial.parameters[path] for trial in view.trials if path in trial.parameters]
    return "number" if all(map(_is_number, values)) else "text"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

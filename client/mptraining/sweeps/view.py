"""A sweep with its status as a value and as text: the same for a folder of this machine and for a cluster.

Pure functions; the names of parameters are shortened to the parts that tell them apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mptraining.display.text import duration, number
from mptraining_api.problems import InvalidSpec
from mptraining_api.status import Condition, parse_time
from mptraining_api.sweep.search_space import max_trials
from mptraining_api.sweep.spec import MPTrainingSweep
from mptraining_api.sweep.status import SweepPhase, SweepStatus, Trial, TrialState

OPEN = (TrialState.PROPOSED, TrialState.RUNNING)
_VAGUE = ("global", "perReplica", "className", "name", "type", "policy", "mode", "rule", "value")


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """Return the shortest end of each path that no other path has: training.optimizer.config.learning_rate ->
    learning_rate. A last part that says little by itself keeps the one before it: batchSize.global.
    """

    def short(path: str) -> str:
        parts = path.split(".")
        for length in range(2 if parts[-1] in _VAGUE else 1, len(parts)):
            end = ".".join(parts[-length:])
            if sum(f".{other}".endswith(f".{end}") for other in paths) == 1:
                return end
        return path

    return {path: short(path) for path in paths}


def value_text(value: object) -> str:
    """Return a parameter's value as short text: numbers with four digits, other values as JSON."""
    if isinstance(value, float):
        return number(value)
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True, slots=True)
class SweepView:
    """A snapshot of a sweep; `where` is its folder, or its namespace and cluster."""

    sweep: MPTrainingSweep
    status: SweepStatus
    where: str

    @property
    def name(self) -> str:
        return self.sweep.metadata.name

    @property
    def trials(self) -> Sequence[Trial]:
        return self.status.trials or ()

    @property
    def metric(self) -> str:
        return self.sweep.spec.objective.metric

    @property
    def maximizes(self) -> bool:
        return self.sweep.spec.objective.direction == "Maximize"

    @property
    def paths(self) -> list[str]:
        return [parameter.path for parameter in self.sweep.spec.parameters]

    @property
    def most(self) -> int:
        """Return the number of trials that the sweep may have."""
        return max_trials(self.sweep.spec)

    @property
    def phase(self) -> str:
        return str(self.status.phase or SweepPhase.PENDING)

    @property
    def finished(self) -> Condition | None:
        """Return the Finished condition; None before the end."""
        conditions = (condition for condition in self.status.conditions or () if condition.status == "True")
        return next((condition for condition in conditions if condition.type == "Finished"), None)

    @property
    def succeeded(self) -> bool:
        return self.status.phase is SweepPhase.SUCCEEDED

    @property
    def seconds(self) -> float | None:
        """Return the time from the first trial to the end, or to the end of the last trial so far."""
        if self.status.start_time is None:
            return None
        ends = [trial.completion_time for trial in self.trials if trial.completion_time]
        end = self.status.completion_time or max(ends, default=None)
        return None if end is None else parse_time(end) - parse_time(self.status.start_time)

    def trial(self, number: int) -> Trial:
        """Return a trial by its number. Raises InvalidSpec."""
        for trial in self.trials:
            if trial.number == number:
                return trial
        there = f"1 to {len(self.trials)}" if self.trials else "no trial yet"
        raise InvalidSpec("--trial", f"there is no trial {number} in {self.name}", expected=there)

    def ranked(self) -> list[Trial]:
        """Return the trials that have an objective, the best first, then the others by number."""
        sign = -1.0 if self.maximizes else 1.0
        return sorted(
            self.trials,
            key=lambda trial: (trial.objective is None, sign * (trial.objective or 0.0), trial.number),
        )


def counts(view: SweepView) -> dict[str, int]:
    """Return the number of trials by what became of them; `ended` is the sum of those that have ended."""
    status = view.status
    ended = {"succeeded": status.succeeded or 0, "stopped": status.stopped or 0, "failed": status.failed or 0}
    return {"running": status.running or 0, "pending": status.pending or 0, **ended, "ended": sum(ended.values())}


def counts_text(view: SweepView) -> str:
    """Return the number of trials that have ended, of all, and what became of them."""
    number_of = counts(view)
    parts = [f"{number_of[key]} {key}" for key in ("running", "pending", "stopped", "failed") if number_of[key]]
    return f"{number_of['ended']} of {view.most} trials" + (f" ({', '.join(parts)})" if parts else "")


def best_text(view: SweepView) -> str:
    """Return the best trial in one line; empty before the first one has ended."""
    best = view.status.best
    if best is None:
        return ""
    return f"{view.metric} {number(best.objective)} (trial {best.number}: {parameters_text(view, best.parameters)})"


def parameters_text(view: SweepView, parameters: Mapping[str, Any]) -> str:
    """Return the parameters by their short names, in the order of the file."""
    names = short_names(view.paths).items()
    return ", ".join(f"{name} {value_text(parameters[path])}" for path, name in names if path in parameters)


def one_line(view: SweepView) -> str:
    best = best_text(view)
    return f"{view.name}: {view.phase}, {counts_text(view)}" + (f"; best {best}" if best else "")


HEADINGS = ("SWEEP", "PHASE", "TRIALS", "RUNNING", "BEST")


def summary_row(view: SweepView) -> list[str]:
    number_of, best = counts(view), view.status.best
    reached = "" if best is None else f"{view.metric} {number(best.objective)}"
    return [view.name, view.phase, f"{number_of['ended']}/{view.most}", str(number_of["running"]), reached]


def lines(view: SweepView) -> list[str]:
    """Return the status of a sweep for `mptj sweep status`."""
    failed = [trial for trial in view.trials if trial.state is TrialState.FAILED and trial.message]
    rows = [
        ("algorithm", view.sweep.spec.algorithm.name),
        ("objective", f"{view.metric}, {view.sweep.spec.objective.direction}"),
        ("trials", counts_text(view)),
        ("best", best_text(view) or "no trial has ended yet"),
        ("time", "" if view.seconds is None else duration(view.seconds)),
        ("ended", "" if view.finished is None else f"{view.finished.reason}: {view.finished.message}"),
        *(("failed", f"trial {trial.number}: {trial.message}") for trial in failed[-3:]),
    ]
    return [
        f"{view.name}: {view.phase}  ({view.where})",
        *(f"  {title:<10}  {text}" for title, text in rows if text),
    ]


def trial_line(view: SweepView, trial: Trial) -> str:
    parts = [
        f"trial {trial.number}",
        state_text(trial),
        "" if trial.objective is None else f"{view.metric} {number(trial.objective)}",
        parameters_text(view, trial.parameters),
        _time_text(trial),
        trial.message or "" if trial.state is TrialState.FAILED else "",
    ]
    return "  ".join(filter(None, parts))


def state_text(trial: Trial) -> str:
    return "stopped early" if trial.state is TrialState.STOPPED else str(trial.state).lower()


def _time_text(trial: Trial) -> str:
    """Return the time from a trial's proposal to its end; empty before the end."""
    if trial.start_time is None or trial.completion_time is None:
        return ""
    return duration(parse_time(trial.completion_time) - parse_time(trial.start_time))


def heads(view: SweepView) -> list[str]:
    return ["trial", "state", view.metric, *short_names(view.paths).values(), "time"]


def row(view: SweepView, trial: Trial) -> list[str]:
    return [
        str(trial.number),
        state_text(trial),
        "" if trial.objective is None else number(trial.objective),
        *(value_text(trial.parameters[path]) if path in trial.parameters else "" for path in view.paths),
        _time_text(trial),
    ]


def newly_ended(before: Iterable[Trial], now: Iterable[Trial]) -> list[Trial]:
    """Return the trials that have ended since `before`, in the order of their numbers."""
    known = {trial.number for trial in before if trial.state not in OPEN}
    return [trial for trial in now if trial.state not in OPEN and trial.number not in known]

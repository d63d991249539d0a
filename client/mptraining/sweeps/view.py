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
    parts = {path: path.split(".") for path in paths}
    found: dict[str, str] = {}
    for path, own in parts.items():
        for length in range(2 if own[-1] in _VAGUE and len(own) > 1 else 1, len(own) + 1):
            end = own[-length:]
            if sum(other[-length:] == end for other in parts.values()) == 1 or length == len(own):
                found[path] = ".".join(end)
                break
    return found


def value_text(value: object) -> str:
    """Return a parameter's value as short text: numbers with four digits, other values as JSON."""
    if isinstance(value, float):
        return number(value)
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True, slots=True)
class SweepView:
    """A snapshot of a sweep; `place` is its folder, or its namespace and cluster."""

    sweep: MPTrainingSweep
    status: SweepStatus
    place: str

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
        return [each.path for each in self.sweep.spec.parameters]

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
        return self.condition("Finished")

    @property
    def succeeded(self) -> bool:
        return self.status.phase is SweepPhase.SUCCEEDED

    @property
    def seconds(self) -> float | None:
        """Return the time from the first trial to the end, or to the end of the last trial so far."""
        if self.status.start_time is None:
            return None
        ends = [each.completion_time for each in self.trials if each.completion_time]
        end = self.status.completion_time or max(ends, default=None)
        return None if end is None else parse_time(end) - parse_time(self.status.start_time)

    def condition(self, type: str) -> Condition | None:
        """Return the condition if it is true."""
        return next(
            (each for each in self.status.conditions or () if each.type == type and each.status == "True"), None
        )

    def trial(self, number: int) -> Trial:
        """Return a trial by its number. Raises InvalidSpec."""
        found = next((each for each in self.trials if each.number == number), None)
        if found is None:
            there = f"1 to {len(self.trials)}" if self.trials else "no trial yet"
            raise InvalidSpec("--trial", f"there is no trial {number} in {self.name}", expected=there)
        return found

    def ranked(self) -> list[Trial]:
        """Return the trials that have an objective, the best first, then the others by number."""
        sign = -1.0 if self.maximizes else 1.0

        def place(trial: Trial) -> tuple[bool, float, int]:
            value = trial.objective
            return value is None, 0.0 if value is None else sign * value, trial.number

        return sorted(self.trials, key=place)


def counts(view: SweepView) -> dict[str, int]:
    """Return the number of trials by what became of them; `ended` is the sum of those that have ended."""
    status = view.status
    ended = {"succeeded": status.succeeded or 0, "stopped": status.stopped or 0, "failed": status.failed or 0}
    return {"running": status.running or 0, "pending": status.pending or 0, **ended, "ended": sum(ended.values())}


def counts_text(view: SweepView) -> str:
    found = counts(view)
    parts = [f"{found[key]} {key}" for key in ("running", "pending", "stopped", "failed") if found[key]]
    return f"{found['ended']} of {view.most} trials" + (f" ({', '.join(parts)})" if parts else "")


def best_text(view: SweepView) -> str:
    """Return the best trial in one line; empty before the first one has ended."""
    best = view.status.best
    if best is None:
        return ""
    return f"{view.metric} {number(best.objective)} (trial {best.number}: {parameters_text(view, best.parameters)})"


def parameters_text(view: SweepView, parameters: Mapping[str, Any]) -> str:
    """Return the parameters by their short names, in the order of the file."""
    names = short_names(view.paths)
    return ", ".join(f"{names[path]} {value_text(parameters[path])}" for path in view.paths if path in parameters)


def one_line(view: SweepView) -> str:
    """Return the sweep in one line."""
    best = best_text(view)
    return f"{view.name}: {view.phase}, {counts_text(view)}" + (f"; best {best}" if best else "")


HEADINGS = ("SWEEP", "PHASE", "TRIALS", "RUNNING", "BEST")


def summary_row(view: SweepView) -> list[str]:
    """Return a sweep's cells below HEADINGS."""
    found, best = counts(view), view.status.best
    return [
        view.name,
        view.phase,
        f"{found['ended']}/{view.most}",
        str(found["running"]),
        "" if best is None else f"{view.metric} {number(best.objective)}",
    ]


def lines(view: SweepView) -> list[str]:
    """Return the status of a sweep for `mptj sweep status`."""
    rows = [
        ("algorithm", view.sweep.spec.algorithm.name),
        ("objective", f"{view.metric}, {view.sweep.spec.objective.direction}"),
        ("trials", counts_text(view)),
        ("best", best_text(view) or "no trial has ended yet"),
    ]
    if view.seconds is not None:
        rows.append(("time", duration(view.seconds)))
    ended = view.finished
    if ended is not None:
        rows.append(("ended", f"{ended.reason}: {ended.message}"))
    failed = [each for each in view.trials if each.state is TrialState.FAILED and each.message]
    rows += [("failed", f"trial {each.number}: {each.message}") for each in failed[-3:]]
    return [f"{view.name}: {view.phase}  ({view.place})", *(f"  {title:<10}  {text}" for title, text in rows)]


def trial_line(view: SweepView, trial: Trial) -> str:
    """Return the line of a trial that has ended."""
    parts = [f"trial {trial.number}", state_text(trial)]
    if trial.objective is not None:
        parts.append(f"{view.metric} {number(trial.objective)}")
    parts.append(parameters_text(view, trial.parameters))
    seconds = trial_seconds(trial)
    if seconds is not None:
        parts.append(duration(seconds))
    if trial.state is TrialState.FAILED and trial.message:
        parts.append(trial.message)
    return "  ".join(parts)


def state_text(trial: Trial) -> str:
    return "stopped early" if trial.state is TrialState.STOPPED else str(trial.state).lower()


def trial_seconds(trial: Trial) -> float | None:
    """Return the time from a trial's proposal to its end; None before the end."""
    if trial.start_time is None or trial.completion_time is None:
        return None
    return parse_time(trial.completion_time) - parse_time(trial.start_time)


def heads(view: SweepView) -> list[str]:
    """Return the titles of the table of trials."""
    names = short_names(view.paths)
    return ["trial", "state", view.metric, *(names[path] for path in view.paths), "time"]


def row(view: SweepView, trial: Trial) -> list[str]:
    """Return a trial's cells in the table of trials."""
    seconds = trial_seconds(trial)
    return [
        str(trial.number),
        state_text(trial),
        "" if trial.objective is None else number(trial.objective),
        *(value_text(trial.parameters[path]) if path in trial.parameters else "" for path in view.paths),
        "" if seconds is None else duration(seconds),
    ]


def newly_ended(before: Iterable[Trial], now: Iterable[Trial]) -> list[Trial]:
    """Return the trials that have ended since `before`, in the order of their numbers."""
    ended = {each.number: each.state not in OPEN for each in before}
    return [each for each in now if each.state not in OPEN and not ended.get(each.number, False)]

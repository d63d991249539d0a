"""Conditions, phase and counts of a sweep's status. Times are in seconds since 1970."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mptraining_api.status import ConditionType, condition, format_time, with_condition
from mptraining_api.sweep.actions import TrialJob
from mptraining_api.sweep.spec import SweepSpec
from mptraining_api.sweep.status import BestTrial, SweepPhase, SweepStatus, Trial, TrialState

ACTIVE = (TrialState.PROPOSED, TrialState.RUNNING)


@dataclass(frozen=True, slots=True)
class End:
    """The end of a sweep: the reason of its conditions, and whether it succeeded."""

    reason: Literal[
        "MaxTrials", "SearchExhausted", "TargetReached", "TimeLimit", "TooManyFailures", "NoResult", "InvalidSpec"
    ]
    message: str
    succeeded: bool


def with_trials(
    status: SweepStatus, spec: SweepSpec, trials: Sequence[Trial], jobs: Mapping[str, TrialJob], most: int
) -> SweepStatus:
    """Return the status with these trials, their counts and the best of them. `most`: the number of trials in all."""
    states = [trial.state for trial in trials]
    running = sum(
        1
        for trial in trials
        if trial.state == TrialState.RUNNING and trial.job in jobs and jobs[trial.job].state == "Running"
    )
    succeeded, stopped = states.count(TrialState.SUCCEEDED), states.count(TrialState.STOPPED)
    return status.model_copy(
        update={
            "trials": list(trials) or None,
            "pending": sum(state in ACTIVE for state in states) - running,
            "running": running,
            "succeeded": succeeded,
            "stopped": stopped,
            "failed": states.count(TrialState.FAILED),
            "completed": f"{succeeded + stopped}/{most}",
            "best": best_trial(spec, trials),
        }
    )


def best_trial(spec: SweepSpec, trials: Sequence[Trial]) -> BestTrial | None:
    """Return the trial with the best objective; of equal ones, the first. None if no trial has one."""
    sign = -1.0 if spec.objective.direction == "Maximize" else 1.0
    best: Trial | None = None
    lowest = math.inf
    for trial in trials:
        if trial.objective is not None and trial.state != TrialState.FAILED and sign * trial.objective < lowest:
            best, lowest = trial, sign * trial.objective
    if best is None or best.objective is None:
        return None
    return BestTrial(number=best.number, objective=best.objective, parameters=best.parameters)


def with_started(status: SweepStatus, digest: str, now: float, generation: int) -> SweepStatus:
    """Record that the sweep has been accepted, with the digest of its search."""
    if status.start_time is None:
        status = status.model_copy(update={"start_time": format_time(now), "search_digest": digest})
    return status.model_copy(update={"observed_generation": generation})


# Trials of another search could not be compared with the earlier ones.
_SEARCH_CHANGED = (
    "the sweep's objective, algorithm, parameters or job changed after its first trial: jobs that exist run to their "
    "end, and no others are created; restore them, or create another sweep"
)


def with_running(status: SweepStatus, now: float, generation: int, *, held: bool = False) -> SweepStatus:
    """Record that the sweep is under way: Running once one of its trials has run.

    `held`: it starts no trials, because its search has changed.
    """
    began = any((status.running, status.succeeded, status.stopped, status.failed))
    phase = SweepPhase.RUNNING if began else SweepPhase.PENDING
    status = status.model_copy(update={"phase": phase})
    if condition(status, "Suspended") is not None:
        status = with_condition(status, "Suspended", False, "Resumed", "", now, generation)
    if held:
        status = with_condition(status, "Running", False, "SearchChanged", _SEARCH_CHANGED, now, generation)
    elif phase == SweepPhase.RUNNING:
        status = with_condition(status, "Running", True, "Running", "trials run", now, generation)
    else:
        status = with_condition(status, "Running", False, "Starting", "no trial runs yet", now, generation)
    return _reconciling(status, now, generation)


def with_suspended(status: SweepStatus, now: float, generation: int, *, held: bool = False) -> SweepStatus:
    """Record the suspension by the user. `held`: resumed, it would start no trials, because its search has changed."""
    message = "suspended by spec.runPolicy.suspend; set it to false to continue"
    status = status.model_copy(update={"phase": SweepPhase.SUSPENDED})
    waits = ("SearchChanged", _SEARCH_CHANGED) if held else ("Suspended", message)
    status = with_condition(status, "Running", False, *waits, now, generation)
    status = with_condition(status, "Suspended", True, "Suspended", message, now, generation)
    return _reconciling(status, now, generation)


def with_finished(status: SweepStatus, end: End, now: float, generation: int) -> SweepStatus:
    status = status.model_copy(
        update={
            "phase": SweepPhase.SUCCEEDED if end.succeeded else SweepPhase.FAILED,
            "observed_generation": generation,
            "completion_time": format_time(now),
            "conditions": [condition for condition in status.conditions or () if condition.type != "Reconciling"],
        }
    )
    status = with_condition(status, "Running", False, end.reason, "the sweep has ended", now, generation)
    kinds: tuple[ConditionType, ...] = ("Complete",) if end.succeeded else ("Failed", "Stalled")
    for kind in kinds:
        status = with_condition(status, kind, True, end.reason, end.message, now, generation)
    return with_condition(status, "Finished", True, end.reason, end.message, now, generation)


def _reconciling(status: SweepStatus, now: float, generation: int) -> SweepStatus:
    # kstatus reports InProgress while it is true.
    message = "the sweep has not ended: see the condition Running"
    return with_condition(status, "Reconciling", True, "NotFinished", message, now, generation)

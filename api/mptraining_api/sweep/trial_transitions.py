"""Transitions of one trial: what its job shows, its next rung, its end. Each returns the next trial."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mptraining_api.status import format_time
from mptraining_api.sweep.actions import Refusal, TrialJob
from mptraining_api.sweep.conditions import ACTIVE, End
from mptraining_api.sweep.early_stopping import Rungs, early_stopping
from mptraining_api.sweep.spec import MPTrainingSweep
from mptraining_api.sweep.status import LONGEST_TRIAL_MESSAGE, RungValue, Trial, TrialState, job_name
from mptraining_api.sweep.trial_job import rounded

# Jobs that failures of machines may end in one rung of a trial; each has retried by its own runPolicy before.
MOST_RETRIES = 3


@dataclass(frozen=True, slots=True)
class Observation:
    """A sweep as it is observed at one time; `most` is the number of trials in all.

    `search_changed`: the sweep's search is another one than its trials are of; `rungs` is None then.
    """

    sweep: MPTrainingSweep
    jobs: Mapping[str, TrialJob]
    refusals: Mapping[str, Refusal]
    rungs: Rungs | None
    most: int
    now: float
    search_changed: bool = False

    @property
    def name(self) -> str:
        return self.sweep.metadata.name


def trial_after_job(seen: Observation, trial: Trial) -> Trial:
    """Return the trial after what its job shows."""
    if trial.state not in ACTIVE:
        return trial
    job = seen.jobs.get(trial.job)
    if job is None:
        return _without_job(seen, trial)
    if job.state == "Succeeded":
        return _ended(seen, trial, job)
    if job.state == "Failed":
        return _after_failure(seen, trial, job)
    return trial.model_copy(update={"state": TrialState.RUNNING, "message": None})


def _without_job(seen: Observation, trial: Trial) -> Trial:
    if trial.state == TrialState.RUNNING:
        return failed_trial(trial, "its job was deleted", seen.now)
    refusal = seen.refusals.get(trial.job)
    if refusal is not None and refusal.final:
        return failed_trial(trial, refusal.message, seen.now)
    return trial if refusal is None else trial.model_copy(update={"message": _brief(refusal.message)})


def _after_failure(seen: Observation, trial: Trial, job: TrialJob) -> Trial:
    retries = trial.retries or 0
    if not job.infrastructure or retries >= MOST_RETRIES:
        return failed_trial(trial, job.message or "its job failed", job.completion or seen.now)
    name = job_name(seen.name, trial.number, trial.rung or 0, retries + 1)
    again = {"state": TrialState.PROPOSED, "job": name, "retries": retries + 1, "message": _brief(job.message)}
    return trial.model_copy(update=again)


def _ended(seen: Observation, trial: Trial, job: TrialJob) -> Trial:
    """Return the trial whose job has succeeded, with its objective."""
    metric = seen.sweep.spec.objective.metric
    value = rounded(job.metrics).get(metric)
    if value is None or not math.isfinite(value):
        known = ", ".join(sorted(job.metrics)) or "nothing"
        missing = f"its job reports no {metric}, but {known}"
        cause = missing if value is None else f"{metric} is {value}"
        return failed_trial(trial, cause, job.completion or seen.now)
    if seen.search_changed and early_stopping(seen.sweep.spec):
        # The epochs of its rung follow from the job as it was. The rung ends when that is restored.
        return trial.model_copy(update={"objective": value, "message": None})
    ended: dict[str, object] = {
        "state": TrialState.SUCCEEDED,
        "objective": value,
        "completion_time": format_time(job.completion or seen.now),
        "message": None,
    }
    if seen.rungs is not None:
        rung = min(trial.rung or 0, seen.rungs.last)
        ended["values"] = [*(trial.values or ()), RungValue(epoch=seen.rungs.epochs[rung], value=value)]
        if rung < seen.rungs.last:
            ended["state"] = TrialState.STOPPED
    return trial.model_copy(update=ended)


def failed_trial(trial: Trial, message: str, at: float) -> Trial:
    ended = {"state": TrialState.FAILED, "message": _brief(message), "completion_time": format_time(at)}
    return trial.model_copy(update=ended)


def _brief(message: str) -> str | None:
    line = " ".join(message.split())
    return (line if len(line) <= LONGEST_TRIAL_MESSAGE else line[: LONGEST_TRIAL_MESSAGE - 1] + "…") or None


def promoted(seen: Observation, trial: Trial) -> Trial:
    rung = (trial.rung or 0) + 1
    name = job_name(seen.name, trial.number, rung)
    update = {"state": TrialState.PROPOSED, "rung": rung, "job": name, "retries": None, "completion_time": None}
    return trial.model_copy(update=update)


def stopped_at_end(trial: Trial, end: End, now: float) -> Trial:
    if trial.state not in ACTIVE:
        return trial
    update = {
        "state": TrialState.STOPPED,
        "message": f"the sweep ended: {end.reason}",
        "completion_time": format_time(now),
        "stopped_by_end": True,
    }
    return trial.model_copy(update=update)


def reopened(trial: Trial) -> Trial:
    """Return the trial in a sweep that continues after its end: what that end stopped is proposed again.

    Its job has the name and the run folder that it had, and so continues from its checkpoint.
    """
    if not trial.stopped_by_end:
        return trial
    update = {"state": TrialState.PROPOSED, "message": None, "completion_time": None, "stopped_by_end": None}
    return trial.model_copy(update=update)

"""The plan of a sweep: the spec, the status and the observed jobs give the next status and the actions.

A trial is recorded in the status before its job is created, under a name that follows from the status alone. A process
that is killed between any two writes therefore neither loses a trial nor starts one twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from mptraining_api.status import EventRecord, format_time, is_true, parse_time
from mptraining_api.sweep import conditions, defaults, proposals
from mptraining_api.sweep.actions import (
    Action,
    CreateJob,
    DeleteJob,
    DeleteSweep,
    Refusal,
    SuspendJob,
    SweepPlan,
    TrialJob,
)
from mptraining_api.sweep.conditions import ACTIVE, End
from mptraining_api.sweep.early_stopping import promotable, rungs
from mptraining_api.sweep.proposals import Propose
from mptraining_api.sweep.search_space import max_trials, search_digest
from mptraining_api.sweep.spec import MPTrainingSweep
from mptraining_api.sweep.status import SweepStatus, Trial, TrialState, job_name
from mptraining_api.sweep.trial_job import job_document
from mptraining_api.sweep.trial_transitions import Observation, failed_trial, promoted, stopped_at_end, trial_after_job

# A refused job is created again after this time: a quota may have been freed.
REFUSAL_RETRY_SECONDS = 30.0


def plan(
    sweep: MPTrainingSweep,
    status: SweepStatus | None,
    jobs: Mapping[str, TrialJob],
    now: float,
    *,
    propose: Propose = proposals.propose,
    new_trials: int | None = None,
    refusals: Mapping[str, Refusal] = MappingProxyType({}),
    invalid: str | None = None,
) -> SweepPlan:
    """Return the next status and the actions of a sweep.

    `jobs`: the sweep's jobs by name. `new_trials`: the most trials that this plan may start or continue; None for as
    many as `trials.parallel` permits. `refusals`: jobs by name whose creation was refused. `invalid`: the message of
    `check`, with which a sweep that has not started fails. Raises Problem if Optuna is needed and not installed.
    """
    status = status or SweepStatus()
    if sweep.metadata.deletion_timestamp is not None:
        return SweepPlan(status)
    if is_true(status, "Finished"):
        return _after_end(sweep, status, jobs, now)
    generation = sweep.metadata.generation or 0
    if invalid is not None and status.start_time is None:
        refused = End("InvalidSpec", invalid, succeeded=False)
        status = conditions.with_finished(status, refused, now, generation)
        return SweepPlan(status, event_records=(_end_event(refused),))

    spec = sweep.spec
    digest = search_digest(spec)
    status = conditions.with_started(status, digest, now, generation)
    # CEL cannot compare values of unknown type with the old ones.
    changed = status.search_digest != digest
    seen = Observation(sweep, jobs, refusals, None if changed else rungs(spec), max_trials(spec), now, changed)
    before = list(status.trials or ())
    trials = [trial_after_job(seen, trial) for trial in before]
    suspended = bool(spec.run_policy and spec.run_policy.suspend)
    end = _early_end(seen, status, trials)
    if end is None and not suspended and not changed:
        trials, exhausted = _with_new_trials(seen, trials, propose, new_trials)
        end = _exhausted(seen, trials) if exhausted else None
    if end is not None:
        trials = [stopped_at_end(trial, end, now) for trial in trials]

    events = _trial_events(before, trials)
    actions: list[Action] = _deletions(trials, jobs)
    if end is None:
        trials, more = _job_actions(seen, trials, suspended=suspended)
        actions += more
    status = conditions.with_trials(status, spec, trials, jobs, seen.most)
    if end is not None:
        status = conditions.with_finished(status, end, now, generation)
        events.append(_end_event(end))
    elif suspended:
        status = conditions.with_suspended(status, now, generation, held=changed)
    else:
        status = conditions.with_running(status, now, generation, held=changed)
    return SweepPlan(status, tuple(actions), tuple(events), _wake_at(seen, status, trials, ended=end is not None))


def _with_new_trials(
    seen: Observation, trials: Sequence[Trial], propose: Propose, limit: int | None
) -> tuple[list[Trial], bool]:
    """Fill the free places; return all trials, and whether the search is exhausted: no trial runs, none can start."""
    spec, filled = seen.sweep.spec, list(trials)
    free = defaults.parallel(spec) - sum(trial.state in ACTIVE for trial in filled)
    allowed = free if limit is None else min(free, limit)
    while True:
        # Promotions and proposals are looked for even where none is allowed: only their absence ends the sweep.
        continued = None if seen.rungs is None else promotable(filled, seen.rungs)
        grows = continued is None and len(filled) < seen.most
        active = any(trial.state in ACTIVE for trial in filled)
        if continued is None and not grows and not active and seen.rungs is not None:
            # No rung has as many trials as the reduction; the best one still trains to the end.
            continued = promotable(filled, seen.rungs, at_least=1)
        if continued is None and not grows:
            return filled, not active
        if allowed <= 0:
            return filled, False
        if continued is not None:
            filled[continued.number - 1] = promoted(seen, continued)
        else:
            known = proposals.known_trials(spec, filled)
            if spec.algorithm.reproducible and any(trial.state in ACTIVE for trial in known):
                # The next proposal depends on a trial that has not ended.
                return filled, False
            parameters = propose(spec, filled)
            if parameters is None:
                return filled, not active
            number = len(filled) + 1
            filled.append(
                Trial(
                    number=number,
                    job=job_name(seen.name, number),
                    state=TrialState.PROPOSED,
                    parameters=parameters,
                    start_time=format_time(seen.now),
                )
            )
        allowed -= 1


def _early_end(seen: Observation, status: SweepStatus, trials: Sequence[Trial]) -> End | None:
    """Return the end of a sweep that has trials left to try."""
    spec = seen.sweep.spec
    best = conditions.best_trial(spec, trials)
    failed = [trial for trial in trials if trial.state == TrialState.FAILED]
    if spec.stop is not None and spec.stop.target is not None and best is not None:
        sign = 1 if spec.objective.direction == "Maximize" else -1
        if sign * best.objective >= sign * spec.stop.target:
            return End("TargetReached", f"trial {best.number} reached {best.objective:g}", succeeded=True)
    if len(failed) > defaults.max_failed(spec):
        message = (
            f"{len(failed)} trials failed, trials.maxFailed is {defaults.max_failed(spec)}; the last: "
            f"trial {failed[-1].number}: {failed[-1].message}"
        )
        return End("TooManyFailures", message, succeeded=False)
    limit = _time_limit(seen, status)
    if limit is not None and seen.now >= limit:
        seconds = spec.stop.after_seconds if spec.stop else 0
        end = End("TimeLimit", f"stop.afterSeconds: {seconds} s have passed", succeeded=True)
        return _with_result(end, best is not None)
    return None


def _exhausted(seen: Observation, trials: Sequence[Trial]) -> End:
    spec = seen.sweep.spec
    best = conditions.best_trial(spec, trials)
    if spec.algorithm.name == "Grid" and not (spec.trials and spec.trials.max and len(trials) >= spec.trials.max):
        end = End("SearchExhausted", f"all {len(trials)} combinations were tried", succeeded=True)
    else:
        end = End("MaxTrials", f"{len(trials)} trials were tried", succeeded=True)
    return _with_result(end, best is not None)


def _with_result(end: End, has_result: bool) -> End:
    return end if has_result else End("NoResult", f"{end.message}, and none of them has a result", succeeded=False)


def _job_actions(seen: Observation, trials: Sequence[Trial], *, suspended: bool) -> tuple[list[Trial], list[Action]]:
    """Return the trials, and the actions that create, suspend and resume the jobs of active ones."""
    after: list[Trial] = []
    actions: list[Action] = []
    # The job of a changed search would not be the trial's.
    starts = not suspended and not seen.search_changed
    for before in trials:
        trial = before
        job = seen.jobs.get(before.job)
        live = job is not None and job.state in ("Pending", "Running")
        # Also where somebody else has set it: who did so is not recorded, and an action that was lost is repeated.
        if before.state in ACTIVE and job is not None and live and job.suspended != suspended:
            actions.append(SuspendJob(before.job, suspended))
        elif before.state == TrialState.PROPOSED and job is None and starts and before.job not in seen.refusals:
            epochs = None if seen.rungs is None else seen.rungs.epochs[min(before.rung or 0, seen.rungs.last)]
            try:
                actions.append(CreateJob(before.job, before.number, job_document(seen.sweep, before, epochs=epochs)))
            except KeyError as error:
                trial = failed_trial(
                    before, f"spec.job has no {error.args[0]}, which a parameter's path names", seen.now
                )
        after.append(trial)
    return after, actions


def _deletions(trials: Sequence[Trial], jobs: Mapping[str, TrialJob]) -> list[Action]:
    """Return the deletion of each job that still runs although its trial has ended."""
    over = (jobs.get(trial.job) for trial in trials if trial.state not in ACTIVE)
    return [DeleteJob(job.name) for job in over if job is not None and job.state in ("Pending", "Running")]


def _after_end(sweep: MPTrainingSweep, status: SweepStatus, jobs: Mapping[str, TrialJob], now: float) -> SweepPlan:
    actions = _deletions(status.trials or (), jobs)
    seconds = sweep.spec.run_policy.ttl_seconds_after_finished if sweep.spec.run_policy else None
    if seconds is None or status.completion_time is None:
        return SweepPlan(status, tuple(actions))
    at = parse_time(status.completion_time) + seconds
    if now >= at:
        return SweepPlan(status, (*actions, DeleteSweep()))
    return SweepPlan(status, tuple(actions), wake_at=at)


def _time_limit(seen: Observation, status: SweepStatus) -> float | None:
    stop = seen.sweep.spec.stop
    if stop is None or stop.after_seconds is None or status.start_time is None:
        return None
    return parse_time(status.start_time) + stop.after_seconds


def _wake_at(seen: Observation, status: SweepStatus, trials: Sequence[Trial], *, ended: bool) -> float | None:
    if ended:
        return _after_end(seen.sweep, status, {}, seen.now).wake_at
    times = [_time_limit(seen, status)]
    if any(trial.state == TrialState.PROPOSED and trial.job in seen.refusals for trial in trials):
        times.append(seen.now + REFUSAL_RETRY_SECONDS)
    return min((time for time in times if time is not None), default=None)


def _trial_events(before: Sequence[Trial], after: Sequence[Trial]) -> list[EventRecord]:
    events = []
    for old, new in zip(before, after, strict=False):
        if new.state == TrialState.FAILED != old.state:
            events.append(EventRecord("TrialFailed", f"trial {new.number}: {new.message}", "Warning"))
        elif (new.retries or 0) > (old.retries or 0):
            text = f"trial {new.number} continues as {new.job}: {new.message or 'its job was lost'}"
            events.append(EventRecord("TrialRetried", text))
    return events


def _end_event(end: End) -> EventRecord:
    return EventRecord(end.reason, end.message, "Normal" if end.succeeded else "Warning")

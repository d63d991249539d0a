"""Single decisions of `plan`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mptraining_api.sweep.actions import CreateJob, DeleteJob, DeleteSweep, Refusal, SuspendJob, SweepPlan, TrialJob
from mptraining_api.sweep.plan import plan
from mptraining_api.sweep.spec import Stop
from mptraining_api.sweep.status import SweepPhase, SweepStatus, Trial, TrialState
from mptraining_api.sweep.trial_transitions import reopened
from tests.unit.api.sweep.sweeps import JOB, RATE, sweep

NOW = 1_000_000.0
SEED = {"path": "training.seed", "int": {"low": 1, "high": 1000}}


def by_number(spec: Any, trials: Any) -> dict[str, Any]:
    return {"training.seed": len(trials) + 1}


def planned(searched: Any, status: SweepStatus | None, *jobs: TrialJob, now: float = NOW, **more: Any) -> SweepPlan:
    return plan(searched, status, {each.name: each for each in jobs}, now, propose=by_number, **more)


def one_at_a_time(**more: Any) -> Any:
    return sweep(**{"parameters": [SEED], "trials": {"max": 3, "parallel": 1, "maxFailed": 1}} | more)


def job(name: str, state: Any = "Succeeded", accuracy: float = 0.9, **more: Any) -> TrialJob:
    return TrialJob(name, state, metrics={"val_accuracy": accuracy, "loss": 1.0}, **more)


def condition(found: SweepPlan, type: str) -> tuple[str, str]:
    (each,) = (each for each in found.status.conditions or () if each.type == type)
    return each.status, each.reason


def trial(found: SweepPlan, number: int = 1) -> Trial:
    return (found.status.trials or [])[number - 1]


def test_a_trial_is_recorded_and_its_job_created_after_that() -> None:
    found = planned(one_at_a_time(), None)
    assert (trial(found).number, trial(found).job, trial(found).state) == (1, "digits-1", TrialState.PROPOSED)
    (create,) = found.actions
    assert isinstance(create, CreateJob)
    assert (create.name, create.trial) == ("digits-1", 1)
    assert create.document == {
        "apiVersion": "mptraining.dev/v1alpha1",
        "kind": "MPTrainingJob",
        "metadata": {
            "name": "digits-1",
            "namespace": "team",
            "labels": {
                "mptraining.dev/sweep": "digits",
                "mptraining.dev/trial": "1",
                "mptraining.dev/sweep-uid": "u-1",
            },
        },
        "spec": JOB | {"training": JOB["training"] | {"seed": 1}, "output": {"uri": "gs://bucket/digits/trials/1"}},
    }
    assert (found.status.phase, condition(found, "Running")) == (SweepPhase.PENDING, ("False", "Starting"))
    # Until the job is seen, it is created again under the same name.
    assert planned(one_at_a_time(), found.status).actions == found.actions


def test_a_trial_ends_with_the_metric_of_its_job_and_the_next_begins() -> None:
    first = planned(one_at_a_time(), None).status
    running = planned(one_at_a_time(), first, job("digits-1", "Running"))
    assert (trial(running).state, running.status.running, running.actions) == (TrialState.RUNNING, 1, ())
    ended = planned(one_at_a_time(), running.status, job("digits-1", accuracy=0.123456789))
    assert (trial(ended).state, trial(ended).objective) == (TrialState.SUCCEEDED, 0.123457)
    assert [action.name for action in ended.actions if isinstance(action, CreateJob)] == ["digits-2"]
    assert (ended.status.completed, ended.status.best and ended.status.best.number) == ("1/3", 1)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"loss": 1.0}, "its job reports no val_accuracy, but loss"),
        ({"val_accuracy": float("nan")}, "val_accuracy is nan"),
    ],
)
def test_a_job_without_the_objective_is_a_failed_trial(metrics: dict[str, float], message: str) -> None:
    first = planned(one_at_a_time(), None).status
    found = planned(one_at_a_time(), first, TrialJob("digits-1", "Succeeded", metrics=metrics))
    assert (trial(found).state, trial(found).message) == (TrialState.FAILED, message)
    assert [(record.reason, record.type) for record in found.event_records] == [("TrialFailed", "Warning")]
    json.loads(found.status.to_json())


def running_trial() -> SweepStatus:
    """Return the status of a sweep whose first trial runs."""
    return planned(one_at_a_time(), planned(one_at_a_time(), None).status, job("digits-1", "Running")).status


def test_a_job_that_was_deleted_is_a_failed_trial() -> None:
    found = planned(one_at_a_time(), running_trial())
    assert (trial(found).state, trial(found).message) == (TrialState.FAILED, "its job was deleted")


def test_a_lost_machine_is_no_failed_trial_until_it_is_one_too_many() -> None:
    status = planned(one_at_a_time(), None).status
    for name, next_name in (
        ("digits-1", "digits-1-x1"),
        ("digits-1-x1", "digits-1-x2"),
        ("digits-1-x2", "digits-1-x3"),
    ):
        found = planned(one_at_a_time(), status, job(name, "Failed", infrastructure=True, message="preempted"))
        assert (trial(found).state, trial(found).job, found.status.failed) == (TrialState.PROPOSED, next_name, 0)
        assert [action.name for action in found.actions if isinstance(action, CreateJob)] == [next_name]
        status = found.status
    found = planned(one_at_a_time(), status, job("digits-1-x3", "Failed", infrastructure=True, message="preempted"))
    assert (trial(found).state, trial(found).message) == (TrialState.FAILED, "preempted")


def test_a_refused_creation_waits_or_fails_the_trial() -> None:
    first = planned(one_at_a_time(), None).status
    waits = planned(one_at_a_time(), first, refusals={"digits-1": Refusal("exceeded quota", final=False)})
    assert (trial(waits).state, trial(waits).message, waits.actions) == (TrialState.PROPOSED, "exceeded quota", ())
    assert waits.wake_at == NOW + 30
    again = planned(one_at_a_time(), waits.status)
    assert [action.name for action in again.actions if isinstance(action, CreateJob)] == ["digits-1"]
    fails = planned(one_at_a_time(), first, refusals={"digits-1": Refusal("spec.workers: invalid", final=True)})
    assert (trial(fails).state, trial(fails).message) == (TrialState.FAILED, "spec.workers: invalid")


def test_suspension_reaches_the_jobs_and_starts_no_others() -> None:
    first = planned(one_at_a_time(), None).status
    suspended = one_at_a_time(runPolicy={"suspend": True})
    found = planned(suspended, first, job("digits-1", "Running"))
    assert found.actions == (SuspendJob("digits-1", True),)
    assert (found.status.phase, condition(found, "Suspended")) == (SweepPhase.SUSPENDED, ("True", "Suspended"))
    ended = planned(suspended, found.status, job("digits-1"))
    assert (trial(ended).state, ended.actions) == (TrialState.SUCCEEDED, ())
    resumed = planned(one_at_a_time(), found.status, job("digits-1", "Running", suspended=True))
    assert resumed.actions == (SuspendJob("digits-1", False),)
    assert condition(resumed, "Suspended") == ("False", "Resumed")
    assert planned(suspended, None).actions == ()
    # A job that somebody suspends or resumes is set as its sweep.
    by_hand = planned(one_at_a_time(), first, job("digits-1", "Pending", suspended=True))
    assert by_hand.actions == (SuspendJob("digits-1", False),)


@pytest.mark.parametrize(
    ("spec", "jobs", "now", "reason", "phase"),
    [
        ({"stop": {"target": 0.9}}, [job("digits-1")], NOW, "TargetReached", SweepPhase.SUCCEEDED),
        ({"trials": {"max": 1}}, [job("digits-1")], NOW, "MaxTrials", SweepPhase.SUCCEEDED),
        ({"trials": {"max": 1}}, [job("digits-1", "Failed")], NOW, "NoResult", SweepPhase.FAILED),
        ({"trials": {"maxFailed": 0}}, [job("digits-1", "Failed")], NOW, "TooManyFailures", SweepPhase.FAILED),
        ({"stop": {"afterSeconds": 60}}, [job("digits-1")], NOW + 60, "TimeLimit", SweepPhase.SUCCEEDED),
        ({"stop": {"afterSeconds": 60}}, [job("digits-1", "Running")], NOW + 60, "NoResult", SweepPhase.FAILED),
    ],
)
def test_a_sweep_ends(spec: dict[str, Any], jobs: list[TrialJob], now: float, reason: str, phase: SweepPhase) -> None:
    searched = one_at_a_time(**spec)
    found = planned(searched, planned(searched, None).status, *jobs, now=now)
    assert (found.status.phase, condition(found, "Finished")) == (phase, ("True", reason))
    good = phase == SweepPhase.SUCCEEDED
    assert condition(found, "Complete" if good else "Failed") == ("True", reason)
    assert good or condition(found, "Stalled") == ("True", reason)
    assert not [each for each in found.status.conditions or () if each.type == "Reconciling"]
    assert [record.reason for record in found.event_records][-1] == reason
    assert not [each for each in found.actions if isinstance(each, CreateJob)]
    # What still runs is deleted, again and again until it is gone.
    for each in (found, planned(searched, found.status, *jobs, now=now)):
        deleted = [action for action in each.actions if isinstance(action, DeleteJob)]
        assert deleted == [DeleteJob(one.name) for one in jobs if one.state == "Running"]


def test_a_trial_that_the_end_stopped_continues_where_it_was_in_a_sweep_that_is_reopened() -> None:
    """Under its number, name and folder, and in its rung; what early stopping has stopped stays so."""
    searched = sweep(parameters=[SEED], algorithm={"name": "Hyperband"}, trials={"max": 4, "parallel": 1})
    status = planned(searched, None).status
    for number in (1, 2, 3):
        status = planned(searched, status, job(f"digits-{number}", accuracy=number / 10)).status
    assert [each.job for each in status.trials or () if each.state == TrialState.PROPOSED] == ["digits-3-r1"]
    limited = searched.model_copy(update={"spec": searched.spec.model_copy(update={"stop": Stop(after_seconds=60)})})
    running = job("digits-3-r1", "Running")
    ended = planned(limited, planned(searched, status, running).status, running, now=NOW + 60)
    assert condition(ended, "Finished") == ("True", "TimeLimit")
    assert [each.stopped_by_end for each in ended.status.trials or ()] == [None, None, True]

    # What a client does that allows the sweep more time.
    trials = [reopened(each) for each in SweepStatus.read(ended.status.to_json()).trials or ()]
    found = planned(searched, status.model_copy(update={"trials": trials}), now=NOW + 70)
    assert [(each.state, each.job) for each in found.status.trials or ()] == [
        (TrialState.STOPPED, "digits-1"),
        (TrialState.STOPPED, "digits-2"),
        (TrialState.PROPOSED, "digits-3-r1"),
    ]
    third = trial(found, 3)
    assert (third.completion_time, third.message, third.stopped_by_end) == (None, None, None)
    (create,) = found.actions
    assert isinstance(create, CreateJob)
    assert create.document["spec"]["output"]["uri"] == "gs://bucket/digits/trials/3"
    assert create.document["spec"]["training"] == JOB["training"] | {"epochs": 3, "seed": 3}


def test_the_whole_grid_is_a_search_that_is_exhausted() -> None:
    searched = one_at_a_time(
        algorithm={"name": "Grid"}, parameters=[SEED | {"int": {"low": 1, "high": 2}}], trials=None
    )
    status = plan(searched, None, {}, NOW).status
    for name in ("digits-1", "digits-2"):
        found = plan(searched, status, {name: job(name)}, NOW)
        status = found.status
    assert condition(found, "Finished") == ("True", "SearchExhausted")
    assert [each.parameters for each in status.trials or ()] == [{"training.seed": 1}, {"training.seed": 2}]


def test_new_trials_are_limited_from_outside_and_the_sweep_goes_on() -> None:
    searched = sweep(parameters=[SEED], trials={"max": 12, "parallel": 4})
    assert len(planned(searched, None, new_trials=2).status.trials or ()) == 2
    none = planned(searched, None, new_trials=0)
    assert (none.status.trials, none.status.phase) == (None, SweepPhase.PENDING)


CHANGED = JOB | {"training": {"epochs": 2}}


def test_a_changed_search_starts_no_trials_and_records_those_that_end() -> None:
    first = planned(one_at_a_time(), None).status
    changed = one_at_a_time(job=CHANGED)
    created = planned(changed, first)
    assert (created.actions, condition(created, "Running")) == ((), ("False", "SearchChanged"))
    found = planned(changed, first, job("digits-1"))
    assert (found.actions, condition(found, "Running")) == ((), ("False", "SearchChanged"))
    assert [(each.state, each.objective) for each in found.status.trials or ()] == [(TrialState.SUCCEEDED, 0.9)]
    assert planned(changed, found.status, job("digits-1"), now=NOW + 50) == SweepPlan(found.status)
    restored = planned(one_at_a_time(), found.status, job("digits-1"))
    assert [action.name for action in restored.actions if isinstance(action, CreateJob)] == ["digits-2"]
    lost = planned(changed, first, job("digits-1", "Failed", infrastructure=True, message="preempted"))
    assert (trial(lost).job, trial(lost).state, lost.actions) == ("digits-1-x1", TrialState.PROPOSED, ())


def test_a_changed_search_is_suspended_resumed_and_ended_as_another() -> None:
    running = job("digits-1", "Running")
    first = planned(one_at_a_time(), planned(one_at_a_time(), None).status, running).status
    found = planned(one_at_a_time(job=CHANGED, runPolicy={"suspend": True}), first, running)
    assert found.actions == (SuspendJob("digits-1", True),)
    assert (found.status.phase, condition(found, "Suspended")) == (SweepPhase.SUSPENDED, ("True", "Suspended"))
    assert condition(found, "Running") == ("False", "SearchChanged")
    resumed = planned(one_at_a_time(job=CHANGED), found.status, job("digits-1", "Running", suspended=True))
    assert resumed.actions == (SuspendJob("digits-1", False),)
    assert condition(resumed, "Suspended") == ("False", "Resumed")

    limited = one_at_a_time(job=CHANGED, stop={"afterSeconds": 60, "target": 0.9})
    assert planned(limited, first, running).wake_at == NOW + 60
    late = planned(limited, first, running, now=NOW + 60)
    assert (late.actions, condition(late, "Finished")) == ((DeleteJob("digits-1"),), ("True", "NoResult"))
    assert condition(planned(limited, first, job("digits-1")), "Finished") == ("True", "TargetReached")


@pytest.mark.parametrize("training", [{"epochs": 2}, {}])
def test_a_rung_that_ends_under_a_changed_job_is_recorded_when_the_job_is_restored(training: dict[str, Any]) -> None:
    """Of how many epochs its value is follows from the job as it was."""
    halving: dict[str, Any] = {"parameters": [SEED], "algorithm": {"name": "Hyperband"}, "trials": {"max": 1}}
    first = planned(sweep(**halving), None).status
    changed = sweep(**halving, job=JOB | {"training": training})
    found = planned(changed, first, job("digits-1"))
    assert (trial(found).objective, trial(found).values, found.actions) == (0.9, None, ())
    assert planned(changed, found.status, job("digits-1"), now=NOW + 50) == SweepPlan(found.status)
    restored = planned(sweep(**halving), found.status, job("digits-1"))
    assert [value.epoch for value in trial(restored).values or ()] == [1]
    assert [action.name for action in restored.actions if isinstance(action, CreateJob)] == ["digits-1-r1"]


def test_an_invalid_sweep_fails_before_its_first_trial() -> None:
    found = planned(one_at_a_time(), None, invalid="spec.parameters[0].path: no such field")
    assert (found.actions, condition(found, "Finished")) == ((), ("True", "InvalidSpec"))
    assert "no such field" in found.event_records[0].message


def test_a_finished_sweep_is_deleted_after_its_time() -> None:
    searched = one_at_a_time(trials={"max": 1}, runPolicy={"ttlSecondsAfterFinished": 100})
    finished = planned(searched, planned(searched, None).status, job("digits-1"))
    assert finished.wake_at == NOW + 100
    assert planned(searched, finished.status, now=NOW + 99).actions == ()
    assert planned(searched, finished.status, now=NOW + 100).actions == (DeleteSweep(),)
    assert planned(one_at_a_time(trials={"max": 1}), finished.status, now=NOW + 100) == SweepPlan(finished.status)


def test_a_plan_of_an_unchanged_sweep_changes_nothing() -> None:
    """Neither does one whose changes are no part of the search."""
    first = planned(one_at_a_time(), None).status
    more = one_at_a_time(trials={"max": 5, "parallel": 2}, stop={"target": 1.0})
    assert condition(planned(more, first), "Running") == ("False", "Starting")
    running = running_trial()
    assert planned(one_at_a_time(), running, job("digits-1", "Running"), now=NOW + 50) == SweepPlan(running)


def test_a_rung_continues_in_its_trials_folder() -> None:
    searched = sweep(parameters=[SEED], algorithm={"name": "Hyperband"}, trials={"max": 1})
    status, found = planned(searched, None).status, None
    for name, epochs in (("digits-1", 1), ("digits-1-r1", 3), ("digits-1-r2", 9)):
        (created,) = (action for action in planned(searched, status).actions if isinstance(action, CreateJob))
        assert (created.name, created.document["spec"]["training"]["epochs"]) == (name, epochs)
        assert created.document["spec"]["output"]["uri"] == "gs://bucket/digits/trials/1"
        found = planned(searched, status, job(name))
        status = found.status
    assert found is not None
    assert (trial(found).state, trial(found).rung) == (TrialState.SUCCEEDED, 2)
    assert [value.epoch for value in trial(found).values or ()] == [1, 3, 9]


def test_the_trials_template_keeps_its_own_policy_except_what_the_sweep_decides() -> None:
    policy = {"backoffLimit": 2, "suspend": True, "ttlSecondsAfterFinished": 5}
    (create,) = planned(one_at_a_time(job=JOB | {"runPolicy": policy}), None).actions
    assert isinstance(create, CreateJob)
    assert create.document["spec"]["runPolicy"] == {"backoffLimit": 2}


def test_the_status_of_a_thousand_trials_fits_in_one_object() -> None:
    """etcd takes 1.5 MiB; the status of 500 trials stays below half a MiB."""
    layers = [{"path": f"program.function.arguments.layer_{n}", "uniform": {"low": 0, "high": 1}} for n in range(4)]
    trials = {"max": 500, "parallel": 500, "maxFailed": 500}
    searched = sweep(parameters=[SEED, RATE, *layers], algorithm={"name": "Hyperband"}, trials=trials)
    values = {parameter.path: 0.12345678901234567 for parameter in searched.spec.parameters}
    status = plan(searched, None, {}, NOW, propose=lambda spec, trials: values).status
    for rung in ("", "-r1", "-r2"):
        jobs = {f"digits-{n}{rung}": job(f"digits-{n}{rung}", accuracy=0.123457) for n in range(1, 501)}
        status = plan(searched, status, jobs, NOW, propose=lambda spec, trials: values).status
    assert len(json.dumps(status.to_document())) < 2**19

"""Times in a status are consistent, whichever replica wrote them; delays between attempts, tries and releases."""

from __future__ import annotations

import dataclasses

import pytest

from mptraining_api import outcomes
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import MPTrainingJob
from mptraining_api.status import CONDITION_TYPES, Attempt, Condition, JobStatus, Phase, format_time, parse_time
from mptraining_operator.jobs.plan import conditions
from mptraining_operator.jobs.plan.actions import StartAttempt
from mptraining_operator.jobs.plan.capacity.gangs import hold_seconds, pause_seconds
from mptraining_operator.jobs.plan.end import restart_backoff
from mptraining_operator.jobs.plan.plan import plan
from mptraining_operator.jobs.plan.snapshot import Limits, Refusal
from tests.fakes import with_image
from tests.unit.operator.plan.test_plan import BASE, seen

NOW = parse_time("2026-01-01T00:01:00Z")


def test_nothing_ends_before_it_has_begun() -> None:
    """A replica whose clock was ahead wrote the start, and one whose clock is behind writes the end."""
    begun = format_time(NOW + 60)
    status = JobStatus(start_time=begun, current_attempt=1, attempts=[Attempt(number=1, start_time=begun)])
    over = conditions.with_attempt_ended(status, outcomes.PREEMPTED, "", NOW)
    assert over.attempts[0].completion_time == begun
    done = conditions.with_finished(status, outcomes.SUCCEEDED, "", NOW, 1)
    assert (done.completion_time, done.attempts[0].completion_time) == (begun, begun)


def test_an_end_has_the_time_of_the_end() -> None:
    status = JobStatus(current_attempt=1, attempts=[Attempt(number=1)])
    assert conditions.with_finished(status, outcomes.SUCCEEDED, "", NOW, 1).completion_time == format_time(NOW)
    begun = format_time(NOW - 60)
    status = JobStatus(start_time=begun, current_attempt=1, attempts=[Attempt(number=1, start_time=begun)])
    over = conditions.with_attempt_ended(status, outcomes.PREEMPTED, "", NOW)
    assert over.attempts[0].completion_time == format_time(NOW)


def test_a_condition_keeps_its_place_and_the_time_of_its_last_change() -> None:
    status = conditions.with_waiting(JobStatus(), Phase.PENDING, "Starting", "", NOW, 1)
    status = conditions.with_condition(status, "Suspended", False, "Resumed", "", NOW, 1)
    later = conditions.with_waiting(status, Phase.PENDING, "Unschedulable", "", NOW + 60, 2)
    assert [(condition.type, condition.reason) for condition in later.conditions] == [
        ("Running", "Unschedulable"),
        ("Reconciling", "NotFinished"),
        ("Suspended", "Resumed"),
    ]
    assert conditions.transition_time(later, "Running") == NOW
    assert conditions.transition_time(conditions.with_running(later, "", NOW + 90, 2), "Running") == NOW + 90


def test_a_message_has_at_most_2000_characters() -> None:
    assert conditions.truncated("m" * 2000) == "m" * 2000
    assert conditions.truncated("m" * 2001) == "m" * 1999 + "…"
    status = JobStatus(current_attempt=1, attempts=[Attempt(number=1)])
    failed = conditions.with_finished(status, outcomes.PROGRAM_FAILED, "m" * 3000, NOW, 1)
    stored = [failed.attempts[0].message, *(condition.message for condition in failed.conditions)]
    assert max(map(len, stored)) == 2000
    # Only one condition carries the message: etcd stores the status of every job.
    assert sum(len(condition.message) for condition in failed.conditions) < 2300


OF_KUEUE = Condition(
    type="kueue.x-k8s.io/Admitted",
    status="Unknown",
    reason="Kueue:Pending",
    message="",
    last_transition_time="2026-01-01T00:00:00Z",
)


def test_conditions_of_other_controllers_are_kept() -> None:
    spec = {"accelerator": {"type": "cpu"}, "program": {"script": {"path": "train.py"}}}
    job = resolve(
        MPTrainingJob.parse({"metadata": {"name": "flowers"}, "spec": spec}),
        ClusterSettings(runtimes=with_image("trainer:1")),
    )
    started = conditions.with_attempt_started(JobStatus(conditions=[OF_KUEUE]), StartAttempt(1, job), NOW, 1)
    running = conditions.with_running(started, "", NOW, 1)
    suspended = conditions.with_suspended(running, NOW, 2)
    failed = conditions.with_finished(suspended, outcomes.PROGRAM_FAILED, "", NOW, 2)
    for each in (started, running, suspended, failed):
        assert [found for found in each.conditions if found.type not in CONDITION_TYPES] == [OF_KUEUE]
    assert conditions.cleared(failed) == JobStatus(conditions=[OF_KUEUE])
    assert conditions.cleared(conditions.with_finished(JobStatus(), outcomes.INVALID_SPEC, "", NOW, 1)) == JobStatus()


def test_a_condition_of_an_unknown_type_is_read() -> None:
    stored = JobStatus(conditions=[OF_KUEUE.model_copy(update={"type": "SomethingNew"})])
    assert JobStatus.read(stored.to_json()) == stored


def test_an_unfinished_job_has_one_condition_for_it_that_does_not_change() -> None:
    first = conditions.with_waiting(JobStatus(), Phase.PENDING, "Starting", "", NOW, 1)
    later = conditions.with_waiting(first, Phase.PENDING, "Unschedulable", "no node", NOW + 60, 2)
    assert conditions.condition(later, "Reconciling") == conditions.condition(first, "Reconciling")
    done = conditions.with_finished(later, outcomes.SUCCEEDED, "", NOW + 90, 2)
    assert {condition.type for condition in done.conditions} == {"Running", "Complete", "Finished"}


LIMITS = Limits()


@pytest.mark.parametrize(
    ("outcomes", "seconds"),
    [
        ([], 0.0),
        (["ProgramFailed"], 10.0),
        (["ProgramFailed"] * 2, 20.0),
        (["ProgramFailed"] * 3, 40.0),
        (["ProgramFailed", "OOMKilled"], 20.0),
        (["ProgramFailed"] * 6, 320.0),
        (["ProgramFailed"] * 7, 360.0),
        (["Preempted"], 2.0),
        (["Preempted", "NodeLost", "StorageUnavailable"], 8.0),
        (["Preempted"] * 10, 360.0),
        # Another budget starts from its own first delay.
        (["ProgramFailed", "ProgramFailed", "Preempted"], 2.0),
        (["ProgramFailed", "Preempted", "ProgramFailed"], 10.0),
        # A suspension is not a failure.
        (["ProgramFailed", "Suspended"], 0.0),
    ],
)
def test_the_delay_doubles_with_each_failure_of_the_same_budget(outcomes: list[str], seconds: float) -> None:
    attempts = [Attempt(number=number, outcome=outcome) for number, outcome in enumerate(outcomes, start=1)]
    assert restart_backoff(JobStatus(attempts=attempts), LIMITS) == seconds


@pytest.mark.parametrize(
    ("rejected_after", "delay"),
    [(0, 2.0), (4, 2.0), (20, 10.0), (120, 60.0), (1000, 60.0)],
)
def test_a_rejected_child_is_tried_again_later_the_longer_it_is_rejected(rejected_after: int, delay: float) -> None:
    """Half of the time since the first try, from 2 to 60 seconds."""
    status = {"phase": "Pending", "currentAttempt": 1, "attempts": [{"number": 1, "startTime": format_time(BASE)}]}
    rejected = BASE + rejected_after
    refusal = Refusal("Job flowers-1", "exceeded quota", rejected)
    snapshot = seen({"status": status, "lookups": {"jobFile": True}})
    snapshot = dataclasses.replace(snapshot, lookups=dataclasses.replace(snapshot.lookups, refusal=refusal))
    early, due = plan(snapshot, rejected + delay - 0.1), plan(snapshot, rejected + delay)
    assert (early.actions, early.wake_at) == ((), rejected + delay)
    assert len(due.actions) == 1


def test_the_release_of_two_jobs_that_began_together_is_separated() -> None:
    """One of the two is first by more than the scheduler's longest retry, 10 s, in most cases; else both try again."""
    apart = [
        abs(hold_seconds(180.0, f"a{number}", 1) - hold_seconds(180.0, f"b{number}", 1)) > 10 for number in range(200)
    ]
    assert sum(apart) / len(apart) > 0.85


def test_times_are_the_same_after_a_restart_and_within_their_bounds() -> None:
    for attempt in range(1, 200):
        hold = hold_seconds(180.0, "uid", attempt)
        assert hold == hold_seconds(180.0, "uid", attempt)
        assert 180.0 <= hold < 360.0
        for releases, most in ((1, 1.5), (2, 2.5), (5, 16.5), (6, 32.5), (20, 32.5)):
            assert 90.0 <= pause_seconds(180.0, "uid", attempt, releases) < 180.0 * most


def test_the_longest_pause_doubles_with_each_release_up_to_a_bound() -> None:
    longest = [max(pause_seconds(1.0, "uid", attempt, releases) for attempt in range(500)) for releases in range(1, 9)]
    assert [round(seconds - 0.5) for seconds in longest] == [1, 2, 4, 8, 16, 32, 32, 32]

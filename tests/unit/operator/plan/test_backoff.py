"""The delay before the next attempt, and before the next try to create a rejected child."""

from __future__ import annotations

import dataclasses

import pytest

from mptraining_api.status import Attempt, JobStatus, format_time
from mptraining_operator.plan.end import restart_backoff
from mptraining_operator.plan.plan import plan
from mptraining_operator.plan.snapshot import Limits, Lookups, Refusal
from tests.unit.operator.plan.test_plan import BASE, seen

LIMITS = Limits(program_backoff=10.0, infrastructure_backoff=2.0, longest_backoff=360.0)


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
    snapshot = dataclasses.replace(seen({"status": status}), lookups=Lookups(job_file_missing=True, refusal=refusal))
    early, due = plan(snapshot, rejected + delay - 0.1), plan(snapshot, rejected + delay)
    assert (early.actions, early.wake_at) == ((), rejected + delay)
    assert len(due.actions) == 1

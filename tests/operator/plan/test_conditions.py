"""Times in a status are consistent, whichever replica wrote them and by whichever clock."""

from __future__ import annotations

from mptraining_api import outcomes
from mptraining_api.status import Attempt, JobStatus, Phase, format_time, parse_time
from mptraining_operator.plan import conditions

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
    assert [(each.type, each.reason) for each in later.conditions] == [
        ("Running", "Unschedulable"),
        ("Suspended", "Resumed"),
    ]
    assert conditions.transition_time(later, "Running") == NOW
    assert conditions.transition_time(conditions.with_running(later, "", NOW + 90, 2), "Running") == NOW + 90


def test_a_message_has_at_most_2000_characters() -> None:
    assert conditions.truncated("m" * 2000) == "m" * 2000
    assert conditions.truncated("m" * 2001) == "m" * 1999 + "…"
    status = JobStatus(current_attempt=1, attempts=[Attempt(number=1)])
    failed = conditions.with_finished(status, outcomes.PROGRAM_FAILED, "m" * 3000, NOW, 1)
    stored = [failed.attempts[0].message, *(each.message for each in failed.conditions)]
    assert max(map(len, stored)) == 2000

"""Times in a status fit together, whichever replica wrote them by whichever clock."""

from __future__ import annotations

from mptraining_api import outcomes
from mptraining_api.status import Attempt, JobStatus, format_time, parse_time
from mptraining_operator.plan import conditions

NOW = parse_time("2026-01-01T00:01:00Z")


def test_nothing_ends_before_it_has_begun() -> None:
    """A replica whose clock was ahead wrote the start, one whose clock is behind writes the end."""
    begun = format_time(NOW + 60)
    status = JobStatus(start_time=begun, current_attempt=1, attempts=[Attempt(number=1, start_time=begun)])
    over = conditions.with_attempt_ended(status, outcomes.PREEMPTED, "", NOW)
    assert over.attempts[0].completion_time == begun
    done = conditions.with_finished(status, outcomes.SUCCEEDED, "", NOW, 1)
    assert (done.completion_time, done.attempts[0].completion_time) == (begun, begun)


def test_an_end_is_when_it_was() -> None:
    status = JobStatus(current_attempt=1, attempts=[Attempt(number=1)])
    assert conditions.with_finished(status, outcomes.SUCCEEDED, "", NOW, 1).completion_time == format_time(NOW)
    begun = format_time(NOW - 60)
    status = JobStatus(start_time=begun, current_attempt=1, attempts=[Attempt(number=1, start_time=begun)])
    over = conditions.with_attempt_ended(status, outcomes.PREEMPTED, "", NOW)
    assert over.attempts[0].completion_time == format_time(NOW)

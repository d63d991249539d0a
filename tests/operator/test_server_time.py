"""The API server's clock, as exactly as its responses show it."""

from __future__ import annotations

import logging
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining_operator.cluster import ServerTime, clock_offset, parse_http_date

SKEWS = st.floats(-90_000, 90_000)
SECONDS = st.floats(0, 40)


@given(skew=SKEWS, calls=st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=1, max_size=20))
def test_the_estimate_is_possible_and_never_gets_worse(skew: float, calls: list[tuple[float, float, float]]) -> None:
    """Responses take any time in either direction; their date has whole seconds."""
    believed, own = 0.0, 1_767_225_600.0
    for there, back, pause in calls:
        sent, own = own, own + there
        date = float(int(own + skew))
        own += back
        after = clock_offset(believed, sent=sent, received=own, date=date)
        assert abs(after - skew) <= max(abs(believed - skew), 1e-6), "a slow answer takes nothing back"
        assert abs(after - skew) <= there + back + 1 + 1e-6
        believed, own = after, own + pause


def test_a_correct_clock_is_not_adjusted() -> None:
    own = 1000.7
    assert clock_offset(0.0, sent=own, received=own + 0.1, date=1000.0) == 0.0
    assert clock_offset(0.0, sent=own, received=own + 30, date=1010.0) == 0.0


@pytest.mark.parametrize("skew", [-60, 60])
def test_a_clock_that_is_a_minute_off_is_corrected_by_one_response(skew: int, caplog: pytest.LogCaptureFixture) -> None:
    true = 1_767_225_600.4
    time = ServerTime(lambda: true + skew)
    assert time() == true + skew
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            time.update(formatdate(int(true), usegmt=True), sent=time.local())
    assert abs(time() - true) <= 1
    assert len(caplog.messages) == 1, "said once"
    assert "60 s apart" in caplog.messages[0] or "59 s apart" in caplog.messages[0]


@pytest.mark.parametrize("date", [None, "", "yesterday", "Mon, 99 Jan 2026 00:00:00 GMT"])
def test_a_response_without_a_date_changes_nothing(date: str | None) -> None:
    time = ServerTime(lambda: 5.0)
    time.update(date, sent=4.0)
    assert time() == 5.0
    assert date is None or parse_http_date(date) is None

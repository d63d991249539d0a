"""Seconds of the machines of a job with alternatives."""

from __future__ import annotations

import pytest

from mptraining_api.machines.try_times import never_tried, sufficient, tried_for


@pytest.mark.parametrize(
    ("times", "limit", "expected"),
    [
        ([None, None, None], 1800, (600, 600, 600)),
        # An equal share of the whole where the written times leave that, else of what they leave.
        ([300, 300, None, 600], 3600, (300, 300, 900, 600)),
        ([900, 700, None], 1800, (900, 700, 200)),
        ([1000, None, None], 1800, (1000, 400, 400)),
        ([900, 899, None], 1800, (900, 899, 1)),
        # In a queue the written times do not count.
        ([7200, None], 1800, (7200, 900)),
        ([None, None], 1, (1, 1)),
    ],
)
def test_a_machine_without_a_time_has_its_share_of_what_remains(
    times: list[int | None], limit: int, expected: tuple[int, ...]
) -> None:
    assert tried_for(times, limit) == expected


@pytest.mark.parametrize(
    ("times", "limit", "expected", "enough"),
    [
        ([900, 900, None], 1800, 2, 2700),
        ([900, 899, None], 1800, None, 2699),
        ([900, 900, 900], 1800, 2, 2700),
        ([900, 900, 900], 1801, None, 2700),
        ([1800, 60], 1800, 1, 1860),
        ([None, 1800], 1800, 0, 3600),
        ([None, None], 1, 0, 2),
    ],
)
def test_the_first_machine_without_time_and_a_limit_that_suffices(
    times: list[int | None], limit: int, expected: int | None, enough: int
) -> None:
    assert (never_tried(times, limit), sufficient(times)) == (expected, enough)
    assert never_tried(times, enough) is None

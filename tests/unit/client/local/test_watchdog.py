"""The process groups that remain when the starter has ended (test_gang kills a real one)."""

from __future__ import annotations

import pytest

from mptraining.local.watchdog import groups_left


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        ([], []),
        (["+12\n", "+13\n"], [12, 13]),
        (["+12\n", "+13\n", "-12\n"], [13]),
        (["+12\n", "-12\n"], []),
        (["+12\n", "+1x\n", "\n", "nonsense\n", "-99\n"], [12]),
    ],
)
def test_groups_left(lines: list[str], left: list[int]) -> None:
    assert groups_left(lines) == left

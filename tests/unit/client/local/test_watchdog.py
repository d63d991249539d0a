"""The process groups that remain when the starter has ended (test_gang kills a real one)."""

from __future__ import annotations

from mptraining.local.watchdog import groups_left


def test_groups_left() -> None:
    assert groups_left([]) == []
    assert groups_left(["+12\n", "+13\n", "-12\n"]) == [13]
    assert groups_left(["+12\n", "+1x\n", "\n", "nonsense\n", "-99\n"]) == [12]

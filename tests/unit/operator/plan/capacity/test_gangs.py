"""How long a half-placed gang keeps its machines, and how long it leaves them to others."""

from __future__ import annotations

from mptraining_operator.plan.capacity.gangs import hold_seconds, pause_seconds


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

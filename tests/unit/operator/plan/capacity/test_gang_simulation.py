"""Many gangs over shared machines: whatever worker the scheduler places first, all gangs run in the end."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from mptraining_operator.plan.capacity.gangs import hold_seconds, pause_seconds

RELEASE = 60.0
# Seconds between two rounds of the scheduler, which retries a pod that did not fit after at most 10 s.
ROUND = 10.0


@dataclass
class Gang:
    uid: str
    size: int
    seconds: float
    arrives: float
    attempt: int = 1
    held: int = 0
    last_placed: float = 0.0
    starts: float = 0.0
    ends: float | None = None
    releases: int = 0

    @property
    def runs(self) -> bool:
        return self.held == self.size


def simulate(seed: int, *, machines: int, gangs: int, releases: bool = True, until: float = 1e6) -> list[Gang]:
    """Return the gangs when all have ended, or at `until` seconds.

    The scheduler gives each free machine to a random worker that waits: no order splits them between more
    gangs.
    """
    chance = random.Random(seed)
    found = [
        Gang(
            f"{seed}-{number}",
            chance.randint(2, machines),
            chance.uniform(0, 20 * RELEASE),
            chance.choice([0.0, chance.uniform(0, 10 * RELEASE)]),
        )
        for number in range(gangs)
    ]
    for each in found:
        each.starts = each.arrives
    free, now = machines, 0.0
    while now < until and any(each.ends is None or each.ends > now for each in found):
        now += ROUND
        for each in found:
            if each.ends is not None and each.ends <= now and each.held:
                free, each.held = free + each.held, 0
            elif each.ends is None and each.held and releases:
                hold = hold_seconds(RELEASE, each.uid, each.attempt)
                if now >= each.last_placed + hold:
                    free, each.held = free + each.held, 0
                    each.releases += 1
                    each.starts = now + pause_seconds(RELEASE, each.uid, each.attempt, each.releases)
                    each.attempt += 1
        waiting = [
            each for each in found if each.ends is None and each.starts <= now for _ in range(each.size - each.held)
        ]
        chance.shuffle(waiting)
        for each in waiting[:free]:
            free, each.held, each.last_placed = free - 1, each.held + 1, now
            if each.runs:
                each.ends = now + each.seconds
    return found


def share_of_work(gangs: list[Gang], machines: int) -> float:
    """Return the time until the last gang ended, as a multiple of the time in which all machines do all work."""
    assert all(each.ends is not None for each in gangs), [each for each in gangs if each.ends is None]
    return max(each.ends or 0.0 for each in gangs) / (sum(each.size * each.seconds for each in gangs) / machines)


def test_without_a_release_gangs_wait_for_each_other_forever() -> None:
    found = simulate(3, machines=8, gangs=10, releases=False, until=1e5)
    waiting = [each for each in found if each.ends is None]
    assert waiting
    assert sum(each.held for each in waiting) == 8


@pytest.mark.parametrize(("machines", "gangs"), [(2, 2), (4, 4), (8, 10), (8, 30), (32, 20)])
@pytest.mark.parametrize("seed", range(3))
def test_all_gangs_run_in_the_end(seed: int, machines: int, gangs: int) -> None:
    """Over 60 seeds, medians are from 1.0 to 2.3 times the time of perfect use, and the most is 2.9; of two gangs that
    each run for a minute, 6.4.
    """
    found = simulate(seed, machines=machines, gangs=gangs)
    assert share_of_work(found, machines) < 8


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

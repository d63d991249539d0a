"""What goes wrong when is drawn by the seed, and every kind of fault comes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.soak.chaos.run import counts
from tests.soak.chaos.schedule import OFFSETS, Kind, Pace, draw

PACE = Pace(wait=(0.5, 2.0), lasts=(1.0, 3.0))


@given(seed=st.integers(0, 10**6), many=st.dictionaries(st.sampled_from(Kind), st.integers(0, 12)))
def test_a_seed_draws_the_same_faults_within_their_bounds(seed: int, many: dict[Kind, int]) -> None:
    drawn = draw(seed, many, PACE)
    assert drawn == draw(seed, many, PACE)
    assert Counter(each.kind for each in drawn) == {kind: count for kind, count in many.items() if count}
    for each in drawn:
        assert PACE.wait[0] <= each.wait <= PACE.wait[1]
        assert PACE.lasts[0] <= each.seconds <= PACE.lasts[1]
        assert 0 <= each.pick < 1
        assert each.offset in OFFSETS


def test_another_seed_draws_another_order() -> None:
    many = dict.fromkeys(Kind, 5)
    assert draw(1, many, PACE) != draw(2, many, PACE)
    assert {each.offset for each in draw(1, many, PACE)} == set(OFFSETS)


def test_every_kind_that_a_place_knows_comes_at_least_once() -> None:
    shares = {Kind.API: 0.05, Kind.PAUSE: 0.1, Kind.DELETE: 0.5}
    assert counts(shares, 6) == {Kind.KILL: 6, Kind.API: 1, Kind.PAUSE: 1, Kind.DELETE: 3}
    assert counts(shares, 200) == {Kind.KILL: 200, Kind.API: 10, Kind.PAUSE: 20, Kind.DELETE: 100}

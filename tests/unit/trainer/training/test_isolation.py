"""Group testing finds the rows that make a batch bad."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining_trainer.training.bad_rows import IsGood, Keep, isolate_bad_rows


def owner(row: int, rows: int, replicas: int, workers: int) -> tuple[int, int]:
    """Return the replica that has a row, and the row's place there: worker row % workers distributes pieces to its
    replicas.
    """
    size = rows // replicas
    return (row % workers) * (replicas // workers) + row // workers // size, row // workers % size


def batch(bad: set[int], rows: int, replicas: int = 1, workers: int = 1, *, alone: bool = True) -> IsGood:
    """Return a batch; with `alone` False a bad row is visible only beside others, as a huge value is in a variance."""

    def is_good(keep: Keep, filler: int) -> bool:
        there: dict[int, list[int]] = {}
        places = {owner(row, rows, replicas, workers): row for row in range(rows)}
        for row in range(rows):
            replica, _ = owner(row, rows, replicas, workers)
            there.setdefault(replica, []).append(row if keep[row] else places[replica, filler])
        return not any(any(row in bad for row in some) and (alone or len(set(some)) > 1) for some in there.values())

    return is_good


@given(st.data())
def test_every_bad_row_is_found_and_no_other(data: st.DataObject) -> None:
    workers = data.draw(st.sampled_from([1, 2, 3]))
    replicas = workers * data.draw(st.sampled_from([1, 2, 4]))
    size = data.draw(st.integers(3, 40))
    rows = replicas * size
    bad = data.draw(st.sets(st.integers(0, rows - 1), min_size=1, max_size=2))
    found = isolate_bad_rows(rows, batch(bad, rows, replicas, workers), replicas=replicas, workers=workers, max_rows=4)
    assert found is None or found == sorted(bad)
    if size > 4:
        assert found == sorted(bad), "one of the four rows that fill is good on every replica"


@given(st.integers(0, 31), st.sampled_from([(1, 1), (2, 1), (2, 2)]))
def test_a_row_that_is_bad_only_beside_others_is_the_odd_one(row: int, layout: tuple[int, int]) -> None:
    replicas, workers = layout
    tried = batch({row}, 32, replicas, workers, alone=False)
    assert isolate_bad_rows(32, tried, replicas=replicas, workers=workers, max_rows=4) == [row]


@pytest.mark.parametrize("row", [0, 1])
def test_of_two_rows_that_only_differ_none_is_reported(row: int) -> None:
    assert isolate_bad_rows(2, batch({row}, 2, alone=False), replicas=1, workers=1, max_rows=2) is None
    assert isolate_bad_rows(2, batch({row}, 2), replicas=1, workers=1, max_rows=2) == [row]


def test_a_batch_that_is_bad_without_a_bad_row_is_recognized() -> None:
    assert isolate_bad_rows(32, lambda keep, filler: False, replicas=1, workers=1, max_rows=4) is None
    of_the_sum = isolate_bad_rows(32, lambda keep, filler: int(keep.sum()) < 32, replicas=1, workers=1, max_rows=4)
    assert of_the_sum is None
    assert isolate_bad_rows(32, batch(set(range(16)), 32), replicas=1, workers=1, max_rows=4) is None, "too many"
    assert isolate_bad_rows(1, lambda keep, filler: False, replicas=1, workers=1, max_rows=1) == [0]


def test_it_takes_few_trials() -> None:
    count = 0
    good = batch({1234, 77}, 4096)

    def counting(keep: np.ndarray, filler: int) -> bool:
        nonlocal count
        count += 1
        return good(keep, filler)

    assert isolate_bad_rows(4096, counting, replicas=1, workers=1, max_rows=8) == [77, 1234]
    assert count <= 2 * 2 * 12 + 2

from __future__ import annotations

import numpy as np
import pytest

from mptraining_records.convert.split import choose_validation, why_not_stratified


@pytest.mark.parametrize("fraction", [0.05, 0.1, 0.2, 0.5, 0.9])
def test_each_class_has_its_share(fraction: float) -> None:
    sizes = [1, 2, 7, 50, 400]
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(5), sizes))
    chosen = choose_validation(len(labels), fraction, 3, labels=labels, groups=None)
    for label, size in enumerate(sizes):
        assert abs(int(chosen[labels == label].sum()) - size * fraction) < 1
        assert chosen[labels == label].sum() < size
    assert abs(int(chosen.sum()) - len(labels) * fraction) <= 2


def test_rows_without_classes_are_drawn_evenly() -> None:
    chosen = np.array([choose_validation(10, 0.3, seed, labels=None, groups=None) for seed in range(2000)])
    assert (chosen.sum(axis=1) == 3).all()
    # Each row is chosen 600 times on average, with a standard deviation of 20.
    assert np.abs(chosen.sum(axis=0) - 600).max() < 100


def test_groups_are_never_divided() -> None:
    groups = np.random.default_rng(2).integers(0, 40, 1000)
    chosen = choose_validation(1000, 0.2, 7, labels=None, groups=groups)
    assert not set(groups[chosen]) & set(groups[~chosen])
    assert 150 < chosen.sum() < 250


@pytest.mark.parametrize(
    ("sizes", "classes", "fraction", "why"),
    [
        ([5, 50, 6], None, 0.2, None),
        ([5, 50, 6], None, 0.8, None),
        ([5, 50, 6], None, 0.1, "0 has 5 rows, a share of 0.1 needs 10 of each value"),
        ([5, 50, 6], None, 0.9, "0 has 5 rows, a share of 0.9 needs 10 of each value"),
        ([100, 100, 1], None, 0.2, "2 has 1 row, a share of 0.2 needs 5 of each value"),
        # Named classes: one may be rare, most may not.
        ([1, 9], ("rare", "common"), 0.2, None),
        ([1, 1, 8], ("a", "b", "c"), 0.2, "'a' has 1 row, a share of 0.2 needs 5 of each value"),
    ],
)
def test_a_split_is_stratified_where_every_value_has_enough_rows_for_both(
    sizes: list[int], classes: tuple[str, ...] | None, fraction: float, why: str | None
) -> None:
    assert why_not_stratified(np.repeat(np.arange(len(sizes)), sizes), fraction, classes) == why

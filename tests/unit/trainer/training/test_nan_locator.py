"""The first of several tensors that are not finite."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from mptraining_trainer.training.nan_locator import first_non_finite, is_finite

FINE: dict[str, list[tuple[int, bool]]] = {
    "weight": [(0, True)], "input": [(0, True)], "activation": [(3, True), (1, True)],
    "statistic": [(0, True)], "loss": [(0, True)],
    "gradient": [(1, True), (0, True)],
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, None),
        ({"gradient": [(1, False), (0, False)]}, (5, 1)),
        ({"activation": [(3, False), (1, False)], "gradient": [(0, False)]}, (2, 3)),
        ({"input": [(0, False)], "activation": [(3, False)], "loss": [(0, False)]}, (1, 0)),
        ({"weight": [(0, True), (1, False)], "input": [(0, False)]}, (0, 1)),
        ({"loss": [(0, False)], "gradient": [(0, False)]}, (4, 0)),
        ({"statistic": [(0, False)], "gradient": [(0, False)]}, (3, 0)),
    ],
)
def test_by_kind_and_then_in_the_order_in_which_they_were_computed(
    change: dict[str, list[tuple[int, bool]]], expected: tuple[int, int] | None
) -> None:
    assert first_non_finite(FINE | change) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32([1, 2]), True),
        (np.float32([1, np.nan]), False),
        (np.float16([np.inf]), False),
        (np.int64([1]), True),
        (["text"], True),
        (None, True),
        (tf.IndexedSlices(tf.constant([np.nan]), tf.constant([0])), False),
    ],
)
def test_what_is_finite(value: object, expected: bool) -> None:
    assert is_finite(value) is expected

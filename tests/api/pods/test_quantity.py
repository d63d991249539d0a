"""Kubernetes' quantities."""

from __future__ import annotations

from fractions import Fraction

import pytest

from mptraining_api.pods.quantity import amount


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (8, 8),
        ("500m", Fraction(1, 2)),
        ("1.5Gi", 3 * 2**29),
        (".5", Fraction(1, 2)),
        ("1e3", 1000),
        ("2E", 2 * 10**18),
        ("64 Gigs", None),
        ("", None),
    ],
)
def test_a_quantity_is_read_as_kubernetes_does(text: int | str, expected: Fraction | None) -> None:
    assert amount(text) == expected

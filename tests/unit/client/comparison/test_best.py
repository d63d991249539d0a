"""The best values of several runs, and their ties."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

import mptraining.board
from mptraining.comparison.compared import TIE, best
from mptraining.comparison.values import Better


@pytest.mark.parametrize(
    ("values", "direction", "expected"),
    [
        ((1.0, 1.2), "lower", (0,)),
        ((1.0, 1.009), "lower", ()),
        ((1.0, 1.009, 1.02), "lower", (0, 1)),
        ((1.0, 1.97, 2.0), "higher", (2,)),
        ((1.0, 2.0), None, ()),
        ((math.nan, 1.0, 2.0), "lower", (1,)),
        ((None, "x", 2.0), "lower", ()),
        ((-1.0, -2.0), "lower", (1,)),
        ((0.0, 0.0, 5.0), "lower", (0, 1)),
    ],
)
def test_the_best_value_and_its_ties(values: tuple[float, ...], direction: Better, expected: tuple[int, ...]) -> None:
    assert best(values, direction, able=range(len(values))) == expected


def test_only_some_runs_can_be_best() -> None:
    assert best([1.0, 2.0, 3.0], "lower", able=[1, 2]) == (1,)


def test_the_board_has_the_same_bound() -> None:
    script = Path(mptraining.board.__file__).parent / "static" / "runs_table.js"
    assert re.findall(r"const TIE = ([\d.]+);", script.read_text(encoding="utf-8")) == [str(TIE)]

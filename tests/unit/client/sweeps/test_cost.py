"""The size of a search and its cost before it starts."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining.sweeps.cost import lines
from mptraining_api.sweep.spec import SweepSpec
from tests.testbed.sweep_files import view_of

SPEC = view_of([]).sweep.spec
PARAMETERS = [
    {"path": "a", "values": [1, 2, 3]},
    {"path": "b", "int": {"low": 0, "high": 10, "step": 5}},
    {"path": "c", "values": [7, 8], "when": {"path": "a", "values": [1]}},
]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"algorithm": {"name": "Hyperband"}, "trials": {"max": 9, "parallel": 2}},
            [
                "flowers: Hyperband over 2 parameters",
                "  training.optimizer.config.learning_rate  0.0001 to 0.1, uniform in the logarithm",
                "  training.batchSize.global                32, 64",
                "  trials  at most 9, 2 at a time",
                "  rungs   9 to epoch 1, 3 to epoch 3, 1 to epoch 4",
                "  epochs  about 16 over all trials; 36 without early stopping",
            ],
        ),
        (
            # A grid has as many trials as combinations.
            {"algorithm": {"name": "Grid"}, "parameters": PARAMETERS, "trials": {}},
            [
                "flowers: Grid over 3 parameters",
                "  a  1, 2, 3",
                "  b  0 to 10 in steps of 5 (3 values)",
                "  c  7, 8, when a is 1",
                "  trials  at most 12",
                "  epochs  about 48 over all trials",
            ],
        ),
    ],
)
def test_the_text_of_a_search(changes: dict[str, Any], expected: list[str]) -> None:
    assert lines("flowers", SweepSpec.parse(SPEC.to_document() | changes)) == expected

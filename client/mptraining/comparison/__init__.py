"""Comparison of runs: their results, the best of them, and the settings in which they differ.

`values` reads one quantity of one run, `settings` its configuration; `compared` marks the best values and puts
them side by side, and `text_table` prints that.
"""

from mptraining.comparison.compared import TEXT_WIDTH, Comparison, Row, compare, side_by_side
from mptraining.comparison.text_table import table
from mptraining.comparison.values import (
    best,
    better_direction,
    labels,
    metric_names,
    metric_title,
    outcome,
    step_seconds_direction,
)

__all__ = [
    "TEXT_WIDTH",
    "Comparison",
    "Row",
    "best",
    "better_direction",
    "compare",
    "labels",
    "metric_names",
    "metric_title",
    "outcome",
    "side_by_side",
    "step_seconds_direction",
    "table",
]

"""Comparison of runs: their results, the best of them, and the settings in which they differ."""

from mptraining.comparison.compared import TEXT_WIDTH, Comparison, Row, compare, side_by_side, table
from mptraining.comparison.quantities import (
    best,
    better_direction,
    flattened,
    keras_text,
    metric_title,
    step_seconds_direction,
)

__all__ = [
    "TEXT_WIDTH",
    "Comparison",
    "Row",
    "best",
    "better_direction",
    "compare",
    "flattened",
    "keras_text",
    "metric_title",
    "side_by_side",
    "step_seconds_direction",
    "table",
]

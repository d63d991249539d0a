"""Comparison of runs: their results, the best of them, and the settings in which they differ."""

from mptraining.comparison.compared import TEXT_WIDTH, Comparison, Row, compare, side_by_side, table
from mptraining.comparison.quantities import (
    best,
    better_direction,
    flattened,
    job_settings,
    keras_text,
    nested,
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
    "job_settings",
    "keras_text",
    "nested",
    "side_by_side",
    "step_seconds_direction",
    "table",
]

"""Comparison of runs: their results, the best of them, and the settings in which they differ."""

from mptraining.comparison.compared import Comparison, compare

__all__ = ["Comparison", "compare"]

"""Fixtures of predictions and ensembles."""

from __future__ import annotations

from tests.training.prediction.trained_runs import numbers, sentences, trained  # noqa: F401

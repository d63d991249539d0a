"""Keras programs as values, their Hypothesis strategies, and their Python source."""

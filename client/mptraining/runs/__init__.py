"""A run folder as files, events and columns, and two views of them: the board's `RunReader`, and `load_run`."""

from mptraining.runs.history import History, Point, history
from mptraining.runs.loaded_run import Run, load_run

__all__ = ["History", "Point", "Run", "history", "load_run"]

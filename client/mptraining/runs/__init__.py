"""One reader of a run folder: files, events, columns; histories, comparisons, the board and exports are views of it."""

from mptraining.runs.history import History, Point, history
from mptraining.runs.run import Run, load_run

__all__ = ["History", "Point", "Run", "history", "load_run"]

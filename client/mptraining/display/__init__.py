"""Display of a run on a terminal, in a notebook or in a log."""

"""A run on a terminal, in a notebook or in a log."""

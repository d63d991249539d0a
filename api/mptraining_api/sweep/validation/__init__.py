"""Mistakes of a sweep, by section: its parameters and their paths, early stopping, the objective."""

"""Runs that are killed at any moment and resumed end with the bits of an undisturbed run.

Reading order: `matrix` (the configurations), `rounds` (one run and its digest), `faults` (signals, and checkpoints that
lack something), `forks` (workers that start in a second), `program` (the model); `elastic` has runs of several sizes.
"""

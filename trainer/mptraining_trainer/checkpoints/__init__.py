"""Checkpoints: their state, files and provenance, and the claim of the run folder."""

"""Packaging of the user's program (script, folder, notebook or function) with its requirements."""

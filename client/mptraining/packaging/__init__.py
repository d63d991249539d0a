"""The user's program as a package: script, folder, notebook or function, with its requirements."""

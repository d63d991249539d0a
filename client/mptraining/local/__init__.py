"""Local jobs: worker processes, their supervision and their outcome."""

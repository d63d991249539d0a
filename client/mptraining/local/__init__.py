"""Jobs on this machine: worker processes, their supervision and their outcome."""

"""The training loop and what looks after its numbers."""

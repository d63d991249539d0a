"""The model and its compilation: program, losses, metrics, optimizer, and checks before training."""

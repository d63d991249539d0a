"""The model and its compilation: program, losses, metrics, optimizer, callbacks, checks before training, inspection."""

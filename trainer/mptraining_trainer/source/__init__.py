"""The user's code: fetched, unpacked, installed and imported before training."""

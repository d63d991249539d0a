"""Checkpoints: state, files, and which attempt may write them."""

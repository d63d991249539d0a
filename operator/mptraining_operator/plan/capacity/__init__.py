"""Decisions about the machines of an attempt: which, how many, and when to give them back."""

"""The machine and the size of the next attempt, from what the earlier attempts found; when gangs give machines back."""

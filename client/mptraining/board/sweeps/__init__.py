"""Sweeps on the board: `shown` reads them, `answers` is what the page gets."""

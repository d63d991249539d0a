"""Benchmarks; every figure in docs/measured.md names the command that measures it."""

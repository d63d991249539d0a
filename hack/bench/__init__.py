"""Benchmarks; every figure in docs/results.md names the command that measures it."""

"""The table of the matrix in docs/reliability.md, between two markers."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

import numpy as np

BEGIN, END = "<!-- made by `make soak` -->", "<!-- until here -->"


def table(rows: Mapping[str, tuple[int, int, int]], *, parts: int, where: str, seed: int) -> str:
    """`rows`: by configuration, runs under faults, kill points in them, and runs that ended otherwise."""
    lines = [
        f"Seed {seed}, {where}. {parts} digests of each run were compared.",
        "",
        "| configuration | runs killed and resumed | kill points | runs that ended otherwise |",
        "|---|---|---|---|",
        *(f"| {name} | {runs} | {kills} | {other} |" for name, (runs, kills, other) in rows.items()),
    ]
    return "\n".join(lines)


def put(document: Path, text: str, *, begin: str = BEGIN, end: str = END) -> None:
    """Replace the text between the markers. Raises ValueError for a document without them."""
    before, found, rest = document.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"{document}: no lines {begin!r} and {end!r} in it")
    document.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def where() -> str:
    """Return the versions and the machine that a table's numbers depend on."""
    # The distribution of TensorFlow has several names.
    import tensorflow as tf

    return f"TensorFlow {tf.__version__}, NumPy {np.__version__}, {platform.machine()}, {os.cpu_count()} processors"

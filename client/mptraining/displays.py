"""Which display fits where this program runs: a notebook's cell, a terminal, or a pipe."""

from __future__ import annotations

import sys

from mptraining.display import Display, PlainDisplay
from mptraining.notebook_display import NotebookDisplay, is_notebook


def display_here(*, plain: bool = False) -> Display:
    """`plain` asks for lines wherever it is."""
    if plain:
        return PlainDisplay()
    if is_notebook():
        return NotebookDisplay()
    if sys.stdout.isatty():
        from mptraining.progress_bar import TerminalDisplay

        return TerminalDisplay()
    return PlainDisplay()

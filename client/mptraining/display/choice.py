"""Which display fits where this program runs: a notebook's cell, a terminal, or a pipe."""

from __future__ import annotations

import sys

from mptraining.display.notebook import NotebookDisplay, is_notebook
from mptraining.display.text import Display, PlainDisplay


def display_here(*, plain: bool = False) -> Display:
    """`plain` asks for lines wherever it is."""
    if plain:
        return PlainDisplay()
    if is_notebook():
        return NotebookDisplay()
    if sys.stdout.isatty():
        from mptraining.display.terminal import TerminalDisplay

        return TerminalDisplay()
    return PlainDisplay()

"""Choice of the display for the current environment: notebook cell, terminal, or pipe."""

from __future__ import annotations

import sys

from mptraining.display.notebook import NotebookDisplay, is_notebook
from mptraining.display.text import Display, PlainDisplay


def display_here(*, plain: bool = False) -> Display:
    """Return the display for this environment; `plain` forces plain lines."""
    if plain:
        return PlainDisplay()
    if is_notebook():
        return NotebookDisplay()
    if sys.stdout.isatty():
        from mptraining.display.terminal import TerminalDisplay

        return TerminalDisplay()
    return PlainDisplay()

"""Parsing of a program's source, which is read and not imported or executed."""

from __future__ import annotations

import ast
import warnings


def parse_source(text: str | bytes) -> ast.Module | None:
    """Return the syntax tree; None for expressions nested too deeply for this Python. Raises SyntaxError, ValueError.

    Python shows no warnings about the user's text.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(text)
    except (RecursionError, MemoryError):
        return None

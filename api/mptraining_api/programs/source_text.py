"""Parsing of a program's source, which is read and not imported or executed."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator


def parse_source(text: str | bytes) -> ast.Module | None:
    """Return the syntax tree; None for expressions nested too deeply for this Python. Raises SyntaxError, ValueError.

    Python shows no warnings about the user's text.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(text)
    except (RecursionError, MemoryError):
        return None


def nodes(text: str) -> Iterator[ast.AST]:
    """Yield the nodes of the syntax tree; nothing if the text is not valid Python."""
    try:
        tree = parse_source(text)
    except (SyntaxError, ValueError):
        return
    yield from ast.walk(tree) if tree else ()


def imported_modules(text: str) -> Iterator[str]:
    """Yield the names that the text imports and that may be modules, relative ones without their dots."""
    for node in nodes(text):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom(module=str(module)):
                yield module
                yield from (f"{module}.{alias.name}" for alias in node.names)

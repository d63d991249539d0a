"""Where in a notebook a line of its program came from: cells begin with a line `# %% NAME, cell N`."""

from __future__ import annotations

import re
from pathlib import Path

_CELL = re.compile(r"# %% (.+, cell \d+)")


def place_of(file: str, line: int) -> str:
    """`train.ipynb, cell 3, line 2` for a line of a notebook's program, `file:line` for all others."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()[:line]
    except (OSError, UnicodeDecodeError):
        lines = []
    for above, text in enumerate(reversed(lines)):
        found = _CELL.fullmatch(text)
        if found:
            return f"{found[1]}, line {above}" if above else found[1]
    return f"{file}:{line}"

"""A command's output in a terminal as an SVG: `python hack/docs/terminal_picture.py FILE.svg -- COMMAND…`.

The command runs in a pseudo terminal, so that it prints colours as it does for a person. The picture names no font of
another site: viewers of repositories load nothing from elsewhere.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import shlex
import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 110
# Rich's template fetches Fira Code from a content delivery network.
_REMOTE_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def output(command: Sequence[str], width: int = WIDTH) -> tuple[str, int]:
    """Run a command in a pseudo terminal of `width` columns; return what it wrote, and its exit code."""
    parts: list[bytes] = []

    def read(descriptor: int) -> bytes:
        data = os.read(descriptor, 65536)
        parts.append(data)
        return data

    # The size of the terminal that runs this script does not count.
    os.environ["COLUMNS"] = str(width)
    code = os.waitstatus_to_exitcode(pty.spawn(list(command), read))
    return b"".join(parts).decode(errors="replace").replace("\r\n", "\n"), code


def picture(text: str, title: str) -> str:
    """Return an SVG document of text with ANSI colours, in a window with a title, as wide as the longest line."""
    shown = Text.from_ansi(text.rstrip())
    console = Console(record=True, width=max(map(len, shown.plain.split("\n"))), file=StringIO(), force_terminal=True)
    console.print(shown)
    return _REMOTE_FONTS.sub("", console.export_svg(title=title, unique_id="terminal"))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python hack/docs/terminal_picture.py", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("file", type=Path, help="the SVG to write")
    parser.add_argument("--title", help="the window's title; the command if absent")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(arguments)
    text, code = output(given.command)
    if code == 0:
        given.file.write_text(picture(text, given.title or shlex.join(given.command)), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

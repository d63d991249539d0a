# /// script
# dependencies = ["pyte>=0.8", "rich>=13"]
# ///
"""A command's output in a terminal as an SVG: `uv run hack/docs/terminal_picture.py FILE.svg -- COMMAND…`.

The command runs in a pseudo terminal, so that it prints colours and redraws bars as it does for a person; a terminal
emulator interprets what it wrote. The picture names no font of another site: viewers of repositories load nothing from
elsewhere.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import shlex
import struct
import sys
import termios
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path

import pyte  # type: ignore[import-not-found]
from rich.console import Console
from rich.text import Text

WIDTH, LINES = 110, 500
# Rich's template fetches Fira Code from a content delivery network.
_REMOTE_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def run(command: Sequence[str]) -> tuple[Text, int]:
    """Run a command in a pseudo terminal; return what the terminal shows at its end, and its exit code."""
    screen = pyte.Screen(WIDTH, LINES)
    stream = pyte.ByteStream(screen)
    child, terminal = pty.fork()
    if child == 0:
        os.execvp(command[0], list(command))
    # A tall terminal, so that nothing scrolls out of it; programs ask for its size.
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, WIDTH, 0, 0))
    while data := _read(terminal):
        stream.feed(data)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Text("\n").join(_lines(screen)), code


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:
        # Linux: every process has closed the other end.
        return b""


def _lines(screen: pyte.Screen) -> Iterator[Text]:
    """Yield the lines down to the last one with text."""
    last = max((row for row in range(LINES) if screen.display[row].strip()), default=-1)
    for row in range(last + 1):
        line = Text()
        for column in range(WIDTH):
            character = screen.buffer[row][column]
            colour = "" if character.fg == "default" else character.fg.replace("brown", "yellow")
            colour = f"#{colour}" if re.fullmatch("[0-9a-f]{6}", colour) else colour
            line.append(character.data, style=f"{'bold ' if character.bold else ''}{colour}".strip())
        line.rstrip()
        yield line


def picture(shown: Text, title: str) -> str:
    """Return an SVG document of a terminal's text in a window with a title, as wide as the longest line."""
    console = Console(record=True, width=max(map(len, shown.plain.split("\n"))), file=StringIO(), force_terminal=True)
    console.print(shown)
    return _REMOTE_FONTS.sub("", console.export_svg(title=title, unique_id="terminal"))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="hack/docs/terminal_picture.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="the SVG to write")
    parser.add_argument("--title", help="the window's title; the command if absent")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(arguments)
    shown, code = run(given.command)
    if code == 0:
        given.file.write_text(picture(shown, given.title or shlex.join(given.command)), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

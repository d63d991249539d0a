"""Standard output in whole lines, whatever thread they come from: an Event stands on a line of its own.

A script's `print("Epochs:", 3)` is four writes. Another thread's Event between two of them would tear the line apart,
and after a progress bar without an end the Event would be part of its line, where nobody looks for it.
"""

from __future__ import annotations

import io
import threading
from typing import TextIO

# What a thread writes without a newline is passed on at this length, in characters.
_LONGEST = 8192


class WholeLines(io.TextIOBase):
    """Writes to `out` what each thread has finished of its line; what is flushed before goes at once."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lock = threading.RLock()
        self._begun: dict[int, str] = {}
        # Whether the last character that went out ended a line.
        self._at_start = True

    def write(self, text: str) -> int:
        """As of any text stream: the number of characters."""
        with self._lock:
            me = threading.get_ident()
            whole, newline, begun = (self._begun.pop(me, "") + text).rpartition("\n")
            if newline:
                self._pass_on(whole + newline)
            if len(begun) > _LONGEST:
                self._pass_on(begun)
            elif begun:
                self._begun[me] = begun
        return len(text)

    def flush(self) -> None:
        """Passes on what this thread has begun, a progress bar perhaps, and what threads left that are gone."""
        with self._lock:
            others = {each.ident for each in threading.enumerate()} - {threading.get_ident()}
            for thread in self._begun.keys() - others:
                self._pass_on(self._begun.pop(thread))
            self._out.flush()

    def line(self, text: str) -> None:
        """A line of its own, at once; a line that was flushed before its end is ended first."""
        with self._lock:
            if not self._at_start:
                self._pass_on("\n")
            self._pass_on(text + "\n")
            self._out.flush()

    def isatty(self) -> bool:
        """Whether people look on."""
        return self._out.isatty()

    def fileno(self) -> int:
        """The file descriptor below."""
        return self._out.fileno()

    def writable(self) -> bool:
        """Always."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream below."""
        return self._out.encoding

    @property
    def buffer(self) -> io.BufferedIOBase:
        """The bytes below, for those that ask a text stream for them."""
        return self._out.buffer  # type: ignore[return-value]

    def _pass_on(self, text: str) -> None:
        self._out.write(text)
        self._at_start = text.endswith("\n")


def of(out: TextIO | WholeLines) -> WholeLines:
    """The stream itself if it is one already."""
    return out if isinstance(out, WholeLines) else WholeLines(out)

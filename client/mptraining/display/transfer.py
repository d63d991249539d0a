"""Progress of a transfer of files: a bar on a terminal, else a line every few seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from mptraining.display import text

if TYPE_CHECKING:
    from rich.progress import Progress

PLAIN_SECONDS = 5.0


class Transfer:
    """A display that shows only the messages of a transfer; subclasses show the bytes, too."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say

    def total(self, size: int) -> None: ...

    def add(self, size: int) -> None: ...


class PlainTransfer(Transfer):
    """Lines for a pipe, a log or a notebook, at most one every `seconds`; threads may add bytes."""

    def __init__(
        self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic, seconds: float = PLAIN_SECONDS
    ) -> None:
        super().__init__(say)
        self._clock = clock
        self._seconds = seconds
        self._total = self._arrived = 0
        self._shown = clock()
        self._adding = threading.Lock()

    def total(self, size: int) -> None:
        self._total = size

    def add(self, size: int) -> None:
        with self._adding:
            self._arrived += size
            if self._clock() - self._shown >= self._seconds:
                self._shown = self._clock()
                self.say(f"{text.size(self._arrived)} of {text.size(self._total)}")


class TerminalTransfer(Transfer):
    """A bar with size, speed and remaining time; lines appear above it."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(partial(progress.console.print, highlight=False, markup=False, soft_wrap=True))
        self._progress = progress
        self._task = progress.add_task("fetch", total=None, start=False)

    def total(self, size: int) -> None:
        self._progress.update(self._task, total=size)
        self._progress.start_task(self._task)

    def add(self, size: int) -> None:
        self._progress.advance(self._task, size)


@contextmanager
def transfer_here(*, plain: bool = False) -> Iterator[Transfer]:
    """Yield the display for this environment; `plain` forces plain lines."""
    if plain or not sys.stdout.isatty():
        yield PlainTransfer(lambda text: print(text, flush=True))
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True) as progress:
        yield TerminalTransfer(progress)

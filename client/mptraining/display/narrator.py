"""Narration of a run for a display whose last line moves: permanent lines, and what is below them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from mptraining.display import text as texts
from mptraining_api.events import Event, Finished, Notice, Progress, Recovered, Saved, Started


@dataclass(frozen=True, slots=True)
class Line:
    text: str
    tone: Literal["", "strong", "warning"] = ""


class RunNarrator(ABC):
    """A display: subclasses draw permanent lines, and below them `moving`, the last progress or a text.

    Every epoch leaves one line: that with its validation metrics, or its last progress if it has none. A checkpoint
    leaves none: `saved` is its step.
    """

    def __init__(self) -> None:
        self.moving: Progress | str = ""
        self.saved: int | None = None
        self._last: Progress | None = None
        self._narrated_epoch = 0

    @abstractmethod
    def show(self, lines: Sequence[Line], *, now: bool = False) -> None:
        """Show more lines, and what moves; with `now` even if the last change was a moment ago."""

    def say(self, text: str) -> None:
        self.show([Line(text, "warning" if text.startswith("warning: ") else "")], now=True)

    def waiting(self, text: str) -> None:
        """Show what the run waits for, until the next event."""
        self.moving = text
        self.show((), now=True)

    def event(self, worker: int, event: Event) -> None:
        if texts.is_shown(worker, event):
            self.show(list(self._lines(worker, event)))

    def _lines(self, worker: int, event: Event) -> Iterator[Line]:
        if isinstance(event, Progress):
            before, self.moving = self._last, event
            if before is not None and event.epoch > before.epoch:
                yield from self._end_of_epoch()
            self._last = event
            if texts.ends_validation(event, before):
                yield self._epoch_line(event)
        elif isinstance(event, Saved):
            self.saved = event.step
        elif texts.is_indexing(event):
            self.moving = " ".join(texts.event_lines(event))
        else:
            # No event reports that the index is ready, so the next event of another kind removes its line.
            if isinstance(event, Finished) or self._last is None:
                self.moving = ""
            if isinstance(event, Finished):
                yield from self._end_of_epoch()
            warns = isinstance(event, Recovered) or (isinstance(event, Notice) and event.level == "Warning")
            for text in texts.event_lines(event):
                tone: Literal["", "strong", "warning"] = "warning" if warns else ""
                yield Line(texts.with_worker_prefix(worker, text), "strong" if isinstance(event, Started) else tone)
            if isinstance(event, Started):
                self.moving = "building and compiling the training step…"

    def _end_of_epoch(self) -> Iterator[Line]:
        """Yield the line of an epoch that had no validation."""
        if self._last is not None and self._last.epoch > self._narrated_epoch:
            yield self._epoch_line(self._last)

    def _epoch_line(self, progress: Progress) -> Line:
        """Return the line of an epoch, without the speed, which the bar shows."""
        self._narrated_epoch = progress.epoch
        return Line(f"{texts.position_text(progress)}  {texts.metrics(progress.metrics)}")

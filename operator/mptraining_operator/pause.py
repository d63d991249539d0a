"""Pause of single jobs and sweeps by their annotation `mptraining.dev/paused`.

The operator leaves a paused job and its children alone, and starts no trial of a paused sweep; deadlines continue, and
are enforced when the pause ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mptraining_api.spec import PAUSED
from mptraining_operator.plan.actions import EventRecord
from mptraining_operator.plan.snapshot import Key


class Pausable(Protocol):
    """A stored job or sweep."""

    @property
    def uid(self) -> str: ...

    @property
    def paused(self) -> bool: ...


class Pause:
    """State of the pauses of one kind of object. Thread-safe for different objects.

    `stored` returns an object from its cache. `record_event` receives one Event when an object is paused, saying what
    the operator `does` meanwhile, and one when it continues.
    """

    def __init__(
        self,
        kind: str,
        does: str,
        stored: Callable[[Key], Pausable | None],
        record_event: Callable[[Key, EventRecord], None],
    ) -> None:
        self._kind = kind
        self._does = does
        self._stored = stored
        self._record_event = record_event
        # The uids of the objects whose pause an Event has reported.
        self._reported: dict[Key, str] = {}

    def holds(self, key: Key) -> bool:
        """Return whether the object must be left alone; report the beginning and the end of its own pause."""
        found = self._stored(key)
        if found is None:
            self._reported.pop(key, None)
            return False
        reported = self._reported.get(key) == found.uid
        if found.paused and not reported:
            self._reported[key] = found.uid
            message = f"the operator {self._does}; to continue, remove the annotation {PAUSED}"
            self._record_event(key, EventRecord("Paused", message))
        elif reported and not found.paused:
            del self._reported[key]
            self._record_event(key, EventRecord("Unpaused", f"the operator reconciles this {self._kind} again"))
        return found.paused

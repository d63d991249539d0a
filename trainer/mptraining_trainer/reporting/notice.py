"""The signature of `Telemetry.notice`, for modules that only report."""

from __future__ import annotations

from typing import Protocol


class Notify(Protocol):
    """Reports `message` once for each topic and message."""

    def __call__(self, topic: str, message: str, *, level: str = "Info") -> None: ...

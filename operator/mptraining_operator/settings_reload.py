"""Settings that take effect without a restart: `logLevel` and `paused`, by reading the settings file again.

The kubelet updates the files of a mounted ConfigMap when it next looks at the pod: every 60 to 90 s by default.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from mptraining_api.problems import Problem
from mptraining_operator.settings import OperatorSettings

_log = logging.getLogger(__name__)

# Fields of OperatorSettings that a running operator takes over.
LIVE = ("log_level", "paused")
READ_SECONDS = 5.0


class SettingsReload:
    """Read the file every `seconds` in a thread, and call `on_change` with the settings when a live one has changed.

    `started` are the settings of the process's start. An invalid file is logged, and the last valid one stays in force.
    """

    def __init__(
        self,
        path: Path,
        started: OperatorSettings,
        on_change: Callable[[OperatorSettings], None],
        *,
        seconds: float = READ_SECONDS,
    ) -> None:
        self._path = path
        self._started = started
        self._on_change = on_change
        self._seconds = seconds
        self._current = started
        self._text: bytes | None = None
        self._reported = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="settings", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def read(self) -> None:
        """Read the file once, and take over what has changed."""
        try:
            text = self._path.read_bytes()
            if text == self._text:
                return
            found = OperatorSettings.load(self._path)
        except (Problem, OSError) as problem:
            self._text = None
            self._report(f"the changed settings are ignored: {problem}")
            return
        self._text = text
        self._report(_restart_needed(self._started, found))
        before, self._current = self._current, found
        if any(getattr(before, name) != getattr(found, name) for name in LIVE):
            _log.warning("settings: logLevel is %s, paused is %s", found.log_level, str(found.paused).lower())
            self._on_change(found)

    def _report(self, text: str) -> None:
        """Log the text unless it was the last one: the file is read again and again."""
        if text and text != self._reported:
            _log.warning("%s", text)
        self._reported = text

    def _run(self) -> None:
        while not self._stopping.wait(self._seconds):
            try:
                self.read()
            except Exception:  # noqa: BLE001 - the thread must keep reading
                _log.exception("the settings could not be read again")


def _restart_needed(started: OperatorSettings, found: OperatorSettings) -> str:
    fields = type(started).model_fields.items()
    changed = [
        str(field.alias)
        for name, field in fields
        if name not in LIVE and getattr(started, name) != getattr(found, name)
    ]
    return (
        f"settings: {', '.join(changed)}: restart the Deployment, a change takes effect at the start" if changed else ""
    )

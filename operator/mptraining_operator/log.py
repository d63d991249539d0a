"""The operator's log: one JSON object a line for collectors, or plain lines for a terminal; to standard error."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

# Their news is every handler and every request; what goes wrong is a warning.
_CHATTY = ("kopf", "aiohttp", "asyncio", "urllib3", "kubernetes")
# One warns at every start that it runs beside the main thread, as it is meant to; the other says four times a second
# that the API server is away, which our own calls say in plainer words. Refusals end the streams, and `watch` says so.
_QUIET = ("kopf._core.reactor.running", "kopf._cogs.clients")
_ORDINARY = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """time, level, message, whatever `extra` carries (job, attempt, …), and the traceback as `error`."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= _extras(record)
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class PlainLines(logging.Formatter):
    """For a person at a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S")
        extras = "".join(f" {name}={value}" for name, value in _extras(record).items())
        line = f"{at} {record.levelname:<7} {record.getMessage()}{extras}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def set_up(level: str, style: str, stream: TextIO | None = None) -> None:
    """Sends all loggers to `stream` (standard error); `level` and `style` as in the settings."""
    formats: dict[str, logging.Formatter] = {"json": JsonLines(), "text": PlainLines()}
    threshold = logging.getLevelNamesMapping()[level]
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(formats[style])
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(threshold)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    extras = {name: value for name, value in record.__dict__.items() if name not in _ORDINARY}
    # kopf's own, a mapping that repeats the object.
    for name in ("k8s_skip", "k8s_ref", "settings"):
        extras.pop(name, None)
    return extras

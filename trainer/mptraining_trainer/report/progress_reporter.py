"""Progress reports of worker 0 to the operator, from a background thread: training never blocks on them.

The newest Progress is POSTed at most once in `EVERY` seconds. If the operator cannot be reached, it is lost and a newer
one follows. Only Finished is retried, and training's end waits for it a few seconds.
"""

from __future__ import annotations

import math
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import requests

from mptraining_api import launch
from mptraining_api.events import Event, Finished, Progress

if TYPE_CHECKING:
    from mptraining_trainer.report.telemetry import Notify

# Seconds between two reports, as between two writes of the status; the report of the last step may come at any time.
EVERY = 15.0
# Seconds to connect, and between two bytes of the response.
_TIMEOUT = (3.0, 5.0)
# A preempted machine has a grace period of 15 s in all.
_LAST_TIMEOUT = (3.0, 3.0)
_LAST_TRIES = 2
_LAST_SECONDS = 7.0
_LONGEST_WAIT = 60.0
_LONGEST_TEXT = 300

# Refusals that neither time nor a new token can fix.
_FINAL = frozenset({400, 409, 413})

TOPIC = "ProgressNotReported"


@dataclass(eq=False, repr=False)
class Reporter:
    """`on_event` accepts Events from any thread and returns at once; `close` sends the last ones and waits briefly.

    The token is read from its file for every request, because the kubelet renews it. `certificate` is the PEM text of
    the operator's certificate. `interval` is in seconds.
    """

    url: str
    token_file: Path
    certificate: str
    notice: Notify
    _: KW_ONLY
    interval: float = EVERY
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._trusted = _written_to_file(self.certificate)
        self._changed = threading.Condition()
        self._progress: Progress | None = None
        self._finished: Finished | None = None
        self._closing = False
        self._next = -math.inf
        self._failures = 0
        self._refused = False
        self._noticed: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="progress reports", daemon=True)
        self._thread.start()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], notice: Notify) -> Self | None:
        """Return the reporter to the URL that an operator has set; None if the certificate cannot be written."""
        token_file = Path(environment.get(launch.PROGRESS_TOKEN_FILE, ""))
        try:
            return cls(
                environment[launch.PROGRESS_URL], token_file, environment.get(launch.PROGRESS_CERTIFICATE, ""), notice
            )
        except OSError as error:
            notice(TOPIC, f"progress is not reported to the operator ({_short(error)})", level="Warning")
            return None

    def on_event(self, event: Event) -> None:
        """Keep the newest Progress and Finished; ignore other events."""
        with self._changed:
            if isinstance(event, Finished):
                self._finished = event
            elif isinstance(event, Progress):
                self._progress = event
            else:
                return
            self._changed.notify_all()

    def close(self, seconds: float = _LAST_SECONDS) -> None:
        """Send the last reports; give up after `seconds`."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(seconds)
        if not self._thread.is_alive():
            self._trusted.unlink(missing_ok=True)

    def _run(self) -> None:
        while (report := self._next_report()) is not None:
            self._try(report, _TIMEOUT)
        # The last step's Progress has figures that Finished does not have.
        for event in self._last_events():
            for _ in range(_LAST_TRIES if isinstance(event, Finished) else 1):
                if self._try(event, _LAST_TIMEOUT):
                    break

    def _next_report(self) -> Progress | None:
        """Wait until the next report is due and return it; None at the end."""
        with self._changed:
            while not (self._closing or self._finished):
                event, pause = self._progress, self._next - self.clock()
                if event is not None and (pause <= 0 or (_is_last(event) and not self._failures)):
                    self._progress = None
                    return event
                self._changed.wait(None if event is None else max(0.0, pause))
            return None

    def _last_events(self) -> list[Event]:
        with self._changed:
            while not self._closing and self._finished is None:
                self._changed.wait()
            last = self._progress if self._progress is not None and _is_last(self._progress) else None
            return [event for event in (last, self._finished) if event is not None]

    def _try(self, event: Event, timeout: tuple[float, float]) -> bool:
        """Send the event and set the time of the next one; return False if a retry may succeed."""
        if self._refused:
            return True
        self._next = self.clock() + self.interval
        try:
            response = self._post(event, timeout)
        except Exception as error:  # noqa: BLE001 - a failed report must not affect training
            self._back_off(None)
            self._warn("trouble", f"progress cannot be reported to the operator ({_short(error)}); tried again later")
            return False
        return self._handle_response(response)

    def _post(self, event: Event, timeout: tuple[float, float]) -> requests.Response:
        token = self.token_file.read_text(encoding="ascii").strip()
        if not token:
            raise ValueError(f"{self.token_file} is empty")
        with requests.Session() as session:
            # Proxies, certificates and passwords in the environment are meant for the program's own requests.
            session.trust_env = False
            return session.post(
                self.url,
                data=event.to_json().encode(),
                headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
                timeout=timeout,
                verify=str(self._trusted),
                # A redirect would send the token to another server.
                allow_redirects=False,
            )

    def _handle_response(self, response: requests.Response) -> bool:
        status, wait = response.status_code, _seconds(response.headers.get("Retry-After"))
        if 200 <= status < 300:
            self._failures = 0
            return True
        cause = f"{status}: {_short(_error(response))}"
        if status in _FINAL and wait is None:
            self._refused = True
            self._warn("refused", f"the operator takes no reports of progress ({cause}); no more are sent")
            return True
        self._back_off(wait)
        self._warn("trouble", f"progress cannot be reported to the operator ({cause}); tried again later")
        return False

    def _back_off(self, wait: float | None) -> None:
        """Set the time of the next try by exponential backoff, at least the operator's Retry-After."""
        self._failures += 1
        doubled = min(_LONGEST_WAIT, self.interval * 2 ** min(self._failures - 1, 10))
        self._next = self.clock() + max(doubled, min(wait or 0.0, _LONGEST_WAIT))

    def _warn(self, what: str, message: str) -> None:
        """Warn once for each kind of failure, and not after the Finished event."""
        with self._changed:
            if what in self._noticed or self._finished is not None:
                return
            self._noticed.add(what)
        self.notice(TOPIC, message, level="Warning")


def _is_last(event: Progress) -> bool:
    return event.total_steps is not None and event.step >= event.total_steps


def _written_to_file(certificate: str) -> Path:
    """Write the certificate to a temporary file, because `requests` takes only a file name; return its path."""
    handle, name = tempfile.mkstemp(prefix="mptraining-certificate-", suffix=".pem")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(certificate)
    return Path(name)


def _seconds(retry_after: str | None) -> float | None:
    """Return Retry-After in seconds; a date, which the operator does not send, counts as 0."""
    if retry_after is None:
        return None
    return float(retry_after) if retry_after.isdecimal() else 0.0


def _error(response: requests.Response) -> str:
    try:
        document = response.json()
    except ValueError:
        return response.reason or "no reason given"
    return str(document.get("error", "")) if isinstance(document, dict) else ""


def _short(error: object) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"

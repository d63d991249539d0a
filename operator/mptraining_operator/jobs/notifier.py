"""Notifications about jobs: JSON posts to one URL of the settings, from a queue and a thread of their own.

They are best effort: one is lost if the URL does not answer for minutes or the leader ends before. The URL may be a
secret, so that neither it nor an error that may quote it is logged.
"""

from __future__ import annotations

import logging
import queue
import string
import threading
from collections.abc import Mapping
from contextlib import suppress

import urllib3

from mptraining_api.outcomes import NO_PROGRESS
from mptraining_api.problems import InvalidSpec
from mptraining_api.status import EventRecord, JobStatus, Phase, truncated
from mptraining_operator.jobs.plan.conditions import condition, is_true
from mptraining_operator.jobs.plan.snapshot import Snapshot
from mptraining_operator.settings import NotificationSettings, filled

_log = logging.getLogger(__name__)

# The reason of the Event of an attempt that failed and is followed by another.
_RESTARTING = "Restarting"
# Notifications that wait for the URL; further ones are dropped.
LONGEST_QUEUE = 1_000
# With pauses of 1 s, 2 s, 4 s … in between, a receiver may be away for two minutes.
TRIES = 8
_HEADERS = {"Content-Type": "application/json"}
_TIMEOUT = urllib3.Timeout(connect=5.0, read=10.0)


def occasions(status: JobStatus, record: EventRecord) -> set[str]:
    """Return the occasions, as in the settings, of an Event that is recorded with the new status of its job.

    A plan records the end of a job once. Of attempts without progress only the first is an occasion.
    """
    running = condition(status, "Running")
    cause = running.reason if running else ""
    if record.reason not in (cause, _RESTARTING):
        return set()
    stalled = [attempt for attempt in status.attempts or () if attempt.outcome == NO_PROGRESS.reason]
    ended = {"NoProgress"} if cause == NO_PROGRESS.reason and len(stalled) == 1 else set()
    if is_true(status, "Finished"):
        ended.add("Complete" if status.phase == Phase.SUCCEEDED else "Failed")
    return ended


class Notifier:
    """A service of the replica. Raises InvalidSpec if the URL has a variable that the `environment` lacks."""

    def __init__(
        self, settings: NotificationSettings, environment: Mapping[str, str], *, first_pause: float = 1.0
    ) -> None:
        self._settings = settings
        self._first_pause = first_pause
        self._bodies: queue.Queue[str] = queue.Queue(LONGEST_QUEUE)
        self._http = urllib3.PoolManager(retries=False, timeout=_TIMEOUT)
        try:
            self._url = string.Template(settings.url or "").substitute(environment).strip()
        except KeyError as error:
            step = "Set it in extraEnv, from a Secret."
            raise InvalidSpec("notifications.url", f"no variable {error.args[0]}", next_step=step) from None

    def start(self, stopping: threading.Event) -> None:
        if self._url:
            threading.Thread(target=self._run, args=(stopping,), name="notifier", daemon=True).start()

    def stop(self) -> None:
        """Do nothing: the thread ends by itself."""

    def ended(self) -> None:
        """Return None: no error ends the thread."""

    def notify(self, snapshot: Snapshot, record: EventRecord) -> None:
        """Queue the notification about the record, if the settings want one; `snapshot` has the job's new status."""
        status = snapshot.status
        if not self._url or status is None or not occasions(status, record) & set(self._settings.events):
            return
        values = {
            "job": snapshot.key.name,
            "namespace": snapshot.key.namespace,
            "phase": str(status.phase),
            "reason": NO_PROGRESS.reason if record.reason == _RESTARTING else record.reason,
            "message": truncated(record.message),
        }
        try:
            self._bodies.put_nowait(filled(self._settings.template, values))
        except queue.Full:
            _log.warning("a notification was dropped: %d wait", LONGEST_QUEUE, extra={"job": str(snapshot.key)})

    def _run(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            with suppress(queue.Empty):
                self._send(self._bodies.get(timeout=1.0), stopping)

    def _send(self, body: str, stopping: threading.Event) -> None:
        for number in range(TRIES):
            try:
                status = self._http.request("POST", self._url, body=body, headers=_HEADERS, redirect=False).status
                if 200 <= status < 300:
                    return
                problem, retry = f"status {status}", status == 429 or status >= 500
            except Exception as error:  # noqa: BLE001 - the thread must keep sending
                problem, retry = type(error).__name__, True
            _log.warning("a notification was not sent: %s", problem)
            if not retry or stopping.wait(self._first_pause * 2**number):
                return

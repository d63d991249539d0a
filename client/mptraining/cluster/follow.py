"""Following of a cluster job until it ends: its status by a watch, its workers' logs by one thread each.

    watch ─┐
    log 0 ─┼─► queue ─► updates, in order of arrival ─► display, or another caller
    log n ─┘

The watch is opened again whenever it ends. Without a response it is retried with exponential backoff, which is
reported once.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from mptraining.cluster.api import ApiServer, changes
from mptraining.cluster.errors import ClusterProblem, Unreachable
from mptraining.cluster.job_view import JobView, view
from mptraining.cluster.logs import LogFollower, WorkerPod, pods
from mptraining_api.kubernetes_api import JOBS

# Logs of the first workers are enough: all workers report the same events, and of worker 1 and later only warnings are
# shown.
LOGS_AT_ONCE = 8
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 15.0
# Time to wait for log lines that were printed shortly before the end.
DRAIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Line:
    pod: WorkerPod
    text: str


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The API server does not answer; the request is retried."""

    problem: ClusterProblem


@dataclass(frozen=True, slots=True)
class Tick:
    """No update has arrived for a while."""


Update = JobView | Line | NoAnswer | Tick


class JobFollower:
    """Context manager that follows a job; iterate over `updates`.

    A new job of the same name with another `uid` is not followed. Logs are those of `worker`, or of the first
    LOGS_AT_ONCE workers, beginning with their last `tail` lines.
    """

    def __init__(
        self, server: ApiServer, name: str, uid: str, *, worker: int | None = None, tail: int | None = None
    ) -> None:
        self._server = server
        self._name = name
        self._uid = uid
        self._inbox: queue.SimpleQueue[Update | BaseException] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._worker = worker
        self._logs: LogFollower | None = LogFollower(
            server, on_line=lambda pod, text: self._inbox.put(Line(pod, text)), tail=tail
        )
        self._thread = threading.Thread(target=self._work, name=f"watch of {name}", daemon=True)

    def __enter__(self) -> JobFollower:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # The daemon threads block in reads and are not joined: they end with their streams or with the program.
        self._stopping.set()

    def updates(self, *, tick_seconds: float = 1.0) -> Iterator[Update]:
        """Yield updates until the job has ended and its logs are read.

        Raises ClusterProblem; NotFound if the job was deleted.
        """
        ended, quiet = False, 0.0
        while True:
            try:
                update = self._inbox.get(timeout=tick_seconds)
            except queue.Empty:
                quiet += tick_seconds
                if ended and not (self._logs_open and quiet < DRAIN_SECONDS):
                    return
                yield Tick()
                continue
            if isinstance(update, BaseException):
                raise update
            quiet = 0.0
            ended = ended or (isinstance(update, JobView) and update.finished)
            yield update

    @property
    def _logs_open(self) -> bool:
        """Return whether log lines may still arrive, from a log that is being read or a pod that is not yet listed."""
        return self._thread.is_alive() or (self._logs is not None and self._logs.reading)

    # -- watch thread -------------------------------------------------------------------------------------------

    def _work(self) -> None:
        pause, silent = FIRST_PAUSE_SECONDS, False
        while not self._stopping.is_set():
            try:
                if self._once():
                    return
                pause, silent = FIRST_PAUSE_SECONDS, False
            except Unreachable as problem:
                if not silent:
                    self._inbox.put(NoAnswer(problem))
                silent = True
                self._stopping.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            except BaseException as problem:  # noqa: BLE001 - raised again by `updates`
                self._inbox.put(problem)
                return

    def _once(self) -> bool:
        """Get the job, then watch it until the watch ends; return whether the job has ended."""
        for document in changes(self._server, JOBS, self._name, self._uid):
            seen = view(document, self._server.flags)
            self._inbox.put(seen)
            if self._logs is not None and seen.status.current_attempt:
                self._look_for_logs(self._logs)
            if seen.finished or self._stopping.is_set():
                return True
        return False

    def _look_for_logs(self, logs: LogFollower) -> None:
        try:
            worker_pods = pods(self._server, self._uid)
        except Unreachable:
            raise
        except ClusterProblem:
            # Without permission to read pods, the progress is shown from the job's status.
            self._logs = None
            return
        for pod in worker_pods:
            is_followed = pod.index < LOGS_AT_ONCE if self._worker is None else pod.index == self._worker
            if pod.started and is_followed:
                logs.add(pod)

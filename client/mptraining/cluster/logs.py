"""Pods of a cluster job by attempt and worker, and the lines and events of their logs."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mptraining.cluster.api import ApiServer
from mptraining.cluster.errors import ClusterProblem, NoLogs, NotFound, Unreachable
from mptraining.cluster.job_view import JobView, condition, reason_text
from mptraining.display.text import event_lines, with_worker_prefix
from mptraining_api import events
from mptraining_api.events import Event, Finished
from mptraining_api.kubernetes_api import PODS
from mptraining_api.status import ATTEMPT, COMPLETION_INDEX, JOB_UID, TRAINER_CONTAINER

# Workers that a message lists one by one.
_MOST_NAMED = 8
# (seconds, nanoseconds), both as text; empty before the first line.
Stamp = tuple[str, ...]


@dataclass(frozen=True, slots=True, order=True)
class WorkerPod:
    """One pod of a job. `running`: its container runs; `started`: it runs or has terminated, so there is a log."""

    attempt: int
    index: int
    created: str
    name: str
    uid: str
    phase: str
    started: bool
    running: bool = False


def pods(server: ApiServer, job_uid: str) -> list[WorkerPod]:
    """Return all pods of the job, sorted by attempt and index."""
    worker_pods = []
    for item in server.items(PODS, labelSelector=f"{JOB_UID}={job_uid}"):
        metadata, status = item["metadata"], item.get("status") or {}
        labels = metadata.get("labels") or {}
        states = [
            container.get("state") or {}
            for container in status.get("containerStatuses") or ()
            if container.get("name") == TRAINER_CONTAINER
        ]
        worker_pods.append(
            WorkerPod(
                attempt=int(labels.get(ATTEMPT, 0)),
                index=int(labels.get(COMPLETION_INDEX, 0)),
                created=metadata.get("creationTimestamp") or "",
                name=metadata["name"],
                uid=metadata["uid"],
                phase=status.get("phase") or "Pending",
                started=any("running" in state or "terminated" in state for state in states),
                running=any("running" in state for state in states),
            )
        )
    return sorted(worker_pods)


def select_pods(candidates: Sequence[WorkerPod], *, attempt: int | None, worker: int | None) -> list[WorkerPod]:
    """Return the pods of one attempt (default: the last) and one worker (default: all)."""
    last = max((pod.attempt for pod in candidates), default=0) if attempt is None else attempt
    return [pod for pod in candidates if pod.attempt == last and worker in (None, pod.index)]


def require_worker(seen: JobView, worker: int | None) -> None:
    """Raise NoLogs if the job does not have this worker, as far as its number of workers is known yet."""
    workers = seen.status.workers
    if worker is not None and workers is not None and worker >= workers:
        known = ", ".join(map(str, range(workers))) if workers <= _MOST_NAMED else f"0 to {workers - 1}"
        raise NoLogs(seen.name, f"the job has no worker {worker}", expected=f"one of {known}")


def explain_no_logs(
    worker_pods: Sequence[WorkerPod], seen: JobView, *, attempt: int | None, worker: int | None
) -> NoLogs:
    """Return why none of the job's pods has a log of that attempt (default: the last) and worker."""
    name = seen.name
    status = f"See: mptj status {shlex.join([name, *seen.flags])}"
    current = seen.status.current_attempt or 0
    number = attempt or max((pod.attempt for pod in worker_pods), default=current)
    if number > current or not number:
        what = f"attempt {number} has not been started" if number else "no attempt has been started"
        return NoLogs(name, f"{what}: {reason_text(seen)}", next_step=status)
    of_attempt = [pod for pod in worker_pods if pod.attempt == number]
    if not of_attempt and not _never_ran(seen, number):
        kept = sorted({pod.attempt for pod in worker_pods})
        there = f"; attempts with pods: {', '.join(map(str, kept))}" if kept else ""
        return NoLogs(
            name,
            f"the pods of attempt {number} are deleted, and their logs with them{there}",
            next_step=_events_step(seen, number, otherwise=status),
        )
    if worker is not None and of_attempt and all(pod.index != worker for pod in of_attempt):
        if worker < (seen.status.workers or 0):
            return NoLogs(
                name,
                f"the pod of worker {worker} of attempt {number} is deleted, and its log with it: when a worker fails, "
                "Kubernetes deletes those that still run",
                next_step=_events_step(seen, number, otherwise=status),
            )
        workers = sorted({pod.index for pod in of_attempt})
        return NoLogs(
            name, f"attempt {number} has no worker {worker}", expected=f"one of {', '.join(map(str, workers))}"
        )
    which = "no worker" if worker is None else f"worker {worker}"
    does = "has started" if worker is None else "has not started"
    return NoLogs(name, f"{which} of attempt {number} {does}: {reason_text(seen)}", next_step=status)


def _never_ran(seen: JobView, number: int) -> bool:
    """Return whether an attempt waits for its first pods, or ended before any attempt of the job had them."""
    attempt = next((attempt for attempt in seen.status.attempts or () if attempt.number == number), None)
    progress = seen.status.progress
    # An attempt that its queue preempted waits for pods again.
    if attempt is None or (progress is not None and progress.attempt == number):
        return False
    if attempt.outcome is None:
        return condition(seen.status, "Running") is None
    return seen.status.start_time is None


def _events_step(seen: JobView, attempt: int, *, otherwise: str) -> str:
    """Return where the events of a deleted pod are; only the run folder has them."""
    if not seen.output:
        return otherwise
    return f"The events of its workers are in the files {attempt}-*.jsonl of {seen.output.rstrip('/')}/events"


def log_lines(server: ApiServer, pod: WorkerPod) -> Iterator[str]:
    """Yield the current log of the trainer's container; nothing if the pod is gone."""
    try:
        yield from server.log(pod.name, container=TRAINER_CONTAINER, follow=False)
    except NotFound:
        return


def follow_lines(server: ApiServer, pod: WorkerPod, *, after: Stamp, tail: int | None) -> Iterator[tuple[Stamp, str]]:
    """Follow the log and yield (time, line) of lines later than `after`; without `after`, of the last `tail` lines."""
    query = {"timestamps": "true"}
    if after:
        # The API server accepts only whole seconds.
        query["sinceTime"] = f"{after[0]}Z"
    elif tail is not None:
        query["tailLines"] = str(tail)
    for line in server.log(pod.name, container=TRAINER_CONTAINER, follow=True, **query):
        time, _, text = line.partition(" ")
        at = parse_timestamp(time)
        if at > after:
            yield at, text


def parse_timestamp(time: str) -> Stamp:
    """Parse `2026-01-01T00:00:00.5Z` to a comparable value: the seconds, and the fraction with nine digits."""
    seconds, _, fraction = time.removesuffix("Z").partition(".")
    return (seconds, fraction.ljust(9, "0"))


def chief_events(server: ApiServer, job_uid: str) -> list[list[Event]]:
    """Return the events of worker 0 in each attempt whose pod still exists."""
    attempts = []
    for pod in pods(server, job_uid):
        if pod.index == 0 and pod.started:
            recorded = [event for event in map(events.parse, log_lines(server, pod)) if event is not None]
            if recorded:
                attempts.append(recorded)
    return attempts


def format_line(pod: WorkerPod, text: str, *, raw: bool = False) -> list[str]:
    """Return a log line as text: events formatted, and with the worker's index except for worker 0."""
    event = None if raw else events.parse(text)
    if event is None:
        return [text if raw else with_worker_prefix(pod.index, text)]
    if isinstance(event, Finished):
        return [with_worker_prefix(pod.index, f"{event.reason}: {event.message}" if event.message else event.reason)]
    return [with_worker_prefix(pod.index, line) for line in event_lines(event)]


class LogFollower:
    """Followed logs of several pods: one thread per pod passes (pod, line) to `on_line`.

    After a lost connection the next `add` connects again and resumes after the last line.
    """

    def __init__(
        self, server: ApiServer, *, on_line: Callable[[WorkerPod, str], None], tail: int | None = None
    ) -> None:
        self._server = server
        self._on_line = on_line
        self._tail = tail
        self._threads: dict[str, threading.Thread] = {}
        self._last: dict[str, Stamp] = {}
        self._over: set[str] = set()

    def add(self, pod: WorkerPod) -> None:
        """Follow the pod's log, unless it is already followed or was read to its end."""
        thread = self._threads.get(pod.uid)
        if pod.uid in self._over or (thread is not None and thread.is_alive()):
            return
        thread = threading.Thread(target=self._follow, args=(pod,), name=f"log of {pod.name}", daemon=True)
        self._threads[pod.uid] = thread
        thread.start()

    @property
    def reading(self) -> bool:
        return any(thread.is_alive() for thread in self._threads.values())

    def _follow(self, pod: WorkerPod) -> None:
        try:
            for at, text in follow_lines(self._server, pod, after=self._last.get(pod.uid, ()), tail=self._tail):
                self._last[pod.uid] = at
                self._on_line(pod, text)
        except Unreachable:
            return
        except ClusterProblem:
            # The pod is gone, or the user may not read its log: a retry does not help.
            self._over.add(pod.uid)
            return
        # If the pod was still running when it was listed, the stream may have ended by a lost connection.
        if pod.phase in ("Succeeded", "Failed"):
            self._over.add(pod.uid)

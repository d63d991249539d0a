"""What the workers of a cluster's job say: their pods, attempt after attempt, and the lines of their logs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mptraining.cluster.api import PODS, ApiServer
from mptraining.cluster.errors import ClusterProblem, NotFound, Unreachable
from mptraining.display.text import lines as event_lines
from mptraining.display.text import prefixed
from mptraining_api import events
from mptraining_api import status as api_status
from mptraining_api.events import Event, Finished

# (seconds, nanoseconds), both as text; empty before the first line.
Stamp = tuple[str, ...]


@dataclass(frozen=True, slots=True, order=True)
class WorkerPod:
    """One pod of a job. `started`: its container runs or ran, so that there is a log."""

    attempt: int
    index: int
    created: str
    name: str
    uid: str
    phase: str
    started: bool


def pods(server: ApiServer, job_uid: str) -> list[WorkerPod]:
    """All pods of the job, by attempt and index."""
    found = []
    for each in server.items(PODS, labelSelector=f"{api_status.JOB_UID}={job_uid}"):
        metadata, status = each["metadata"], each.get("status") or {}
        says = metadata.get("labels") or {}
        states = [
            container.get("state") or {}
            for container in status.get("containerStatuses") or ()
            if container.get("name") == api_status.TRAINER_CONTAINER
        ]
        found.append(
            WorkerPod(
                attempt=int(says.get(api_status.ATTEMPT, 0)),
                index=int(says.get(api_status.COMPLETION_INDEX, 0)),
                created=metadata.get("creationTimestamp") or "",
                name=metadata["name"],
                uid=metadata["uid"],
                phase=status.get("phase") or "Pending",
                started=any("running" in state or "terminated" in state for state in states),
            )
        )
    return sorted(found)


def chosen(found: Sequence[WorkerPod], *, attempt: int | None, worker: int | None) -> list[WorkerPod]:
    """Those of one attempt (default: the last) and one worker (default: all)."""
    last = max((each.attempt for each in found), default=0) if attempt is None else attempt
    return [each for each in found if each.attempt == last and worker in (None, each.index)]


def lines(server: ApiServer, pod: WorkerPod) -> Iterator[str]:
    """What the trainer's container has said so far. A pod that is gone has said nothing."""
    try:
        yield from server.log(pod.name, container=api_status.TRAINER_CONTAINER, follow=False)
    except NotFound:
        return


def stamped(server: ApiServer, pod: WorkerPod, *, after: Stamp, tail: int | None) -> Iterator[tuple[Stamp, str]]:
    """(time, line) as they come, of those later than `after`; at first only the last `tail` ones."""
    query = {"timestamps": "true"}
    if after:
        # Whole seconds is all that the API server reads.
        query["sinceTime"] = f"{after[0]}Z"
    elif tail is not None:
        query["tailLines"] = str(tail)
    for line in server.log(pod.name, container=api_status.TRAINER_CONTAINER, follow=True, **query):
        time, _, text = line.partition(" ")
        at = stamp(time)
        if at > after:
            yield at, text


def stamp(time: str) -> Stamp:
    """`2026-01-01T00:00:00.5Z` as a value that can be compared: the seconds, and the fraction in nine digits."""
    seconds, _, fraction = time.removesuffix("Z").partition(".")
    return (seconds, fraction.ljust(9, "0"))


def chief_events(server: ApiServer, job_uid: str) -> list[list[Event]]:
    """What worker 0 said in each attempt, as far as its pods are still there."""
    told = []
    for pod in pods(server, job_uid):
        if pod.index == 0 and pod.started:
            said = [event for event in map(events.parse, lines(server, pod)) if event is not None]
            if said:
                told.append(said)
    return told


def readable(pod: WorkerPod, text: str, *, raw: bool = False) -> list[str]:
    """A line of a log as a person reads it: events in words, of other workers than the first with their index."""
    event = None if raw else events.parse(text)
    if event is None:
        return [text if raw else prefixed(pod.index, text)]
    if isinstance(event, Finished):
        return [prefixed(pod.index, f"{event.reason}: {event.message}" if event.message else event.reason)]
    return [prefixed(pod.index, each) for each in event_lines(event)]


class Followed:
    """The logs of several pods at once, as they grow: a thread each hands (pod, line) to `said`.

    A connection that is lost is made again by the next `add`, and goes on behind the last line.
    """

    def __init__(self, server: ApiServer, *, said: Callable[[WorkerPod, str], None], tail: int | None = None) -> None:
        self._server = server
        self._said = said
        self._tail = tail
        self._threads: dict[str, threading.Thread] = {}
        self._last: dict[str, Stamp] = {}
        self._over: set[str] = set()

    def add(self, pod: WorkerPod) -> None:
        """Follows the pod's log, unless that is done already, or told to its end."""
        thread = self._threads.get(pod.uid)
        if pod.uid in self._over or (thread is not None and thread.is_alive()):
            return
        thread = threading.Thread(target=self._follow, args=(pod,), name=f"log of {pod.name}", daemon=True)
        self._threads[pod.uid] = thread
        thread.start()

    @property
    def under_way(self) -> bool:
        return any(each.is_alive() for each in self._threads.values())

    def _follow(self, pod: WorkerPod) -> None:
        try:
            for at, text in stamped(self._server, pod, after=self._last.get(pod.uid, ()), tail=self._tail):
                self._last[pod.uid] = at
                self._said(pod, text)
        except Unreachable:
            return
        except ClusterProblem:
            # A pod that is gone, or a log that may not be read: asking again changes nothing.
            self._over.add(pod.uid)
            return
        # The end of a pod that ran when it was looked at may be that of the connection alone.
        if pod.phase in ("Succeeded", "Failed"):
            self._over.add(pod.uid)

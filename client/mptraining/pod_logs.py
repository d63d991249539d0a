"""What the workers of a cluster's job say: their pods, attempt after attempt, and the lines of their logs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mptraining.api_server import PODS, ApiServer
from mptraining.cluster_problems import ClusterProblem, NotFound
from mptraining.display import lines as event_lines
from mptraining.display import prefixed
from mptraining_api import events, labels
from mptraining_api.events import Event, Finished


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
    for each in server.items(PODS, labelSelector=f"{labels.JOB_UID}={job_uid}"):
        metadata, status = each["metadata"], each.get("status") or {}
        says = metadata.get("labels") or {}
        states = [
            container.get("state") or {}
            for container in status.get("containerStatuses") or ()
            if container.get("name") == labels.TRAINER_CONTAINER
        ]
        found.append(
            WorkerPod(
                attempt=int(says.get(labels.ATTEMPT, 0)),
                index=int(says.get(labels.COMPLETION_INDEX, 0)),
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


def lines(server: ApiServer, pod: WorkerPod, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
    """Of the trainer's container. A pod that is gone has none."""
    try:
        yield from server.log(pod.name, container=labels.TRAINER_CONTAINER, follow=follow, tail=tail)
    except NotFound:
        return


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
    """The logs of several pods at once, as they grow: a thread each puts (pod, line) into a queue.

    `ended` is called with the pod when its log is over, and with a problem when it cannot be read.
    """

    def __init__(
        self,
        server: ApiServer,
        *,
        said: Callable[[WorkerPod, str], None],
        ended: Callable[[WorkerPod, ClusterProblem | None], None],
    ) -> None:
        self._server = server
        self._said = said
        self._ended = ended
        self._known: dict[str, threading.Thread] = {}

    def add(self, pod: WorkerPod) -> None:
        """Follows the pod's log from its beginning; once for each pod."""
        if pod.uid in self._known:
            return
        thread = threading.Thread(target=self._follow, args=(pod,), name=f"log of {pod.name}", daemon=True)
        self._known[pod.uid] = thread
        thread.start()

    @property
    def under_way(self) -> bool:
        return any(each.is_alive() for each in self._known.values())

    def _follow(self, pod: WorkerPod) -> None:
        problem = None
        try:
            for line in lines(self._server, pod, follow=True):
                self._said(pod, line)
        except ClusterProblem as refused:
            problem = refused
        self._ended(pod, problem)

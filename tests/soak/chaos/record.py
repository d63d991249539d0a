"""The history of jobs, Indexed Jobs and pods from the API server's watches: frozen values, and their recorder.

A watch resumes from the last version that it has seen, over any outage. If the API server no longer has that version,
the recorder lists, and the differences become one step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import urllib3

from tests.testbed.kubernetes.rest import Object, Refused, Rest, changes

JOB, JOB_UID, ATTEMPT = "mptraining.dev/job", "mptraining.dev/job-uid", "mptraining.dev/attempt"
INDEX = "batch.kubernetes.io/job-completion-index"


@dataclass(frozen=True)
class PodSeen:
    """A worker's pod."""

    uid: str
    name: str
    job: str
    attempt: int
    index: int
    phase: str

    @property
    def alive(self) -> bool:
        """Report whether its containers may run, as far as the API server knows."""
        return self.phase not in ("Succeeded", "Failed")


@dataclass(frozen=True)
class ChildSeen:
    """The Indexed Job of an attempt."""

    uid: str
    name: str
    job: str
    attempt: int
    owner: str


@dataclass(frozen=True)
class JobSeen:
    """An MPTrainingJob. `attempts`: number and outcome of those in its status; `start`, `end`: its times as written."""

    uid: str
    name: str
    phase: str = ""
    attempt: int = 0
    attempts: tuple[tuple[int, str], ...] = ()
    failures: int = 0
    restarts: int = 0
    finished: bool = False
    reason: str = ""
    start: str = ""
    end: str = ""


Seen = PodSeen | ChildSeen | JobSeen


@dataclass(frozen=True)
class Change:
    """An object as it is now, or as it was before its deletion."""

    seen: Seen
    gone: bool = False


@dataclass(frozen=True)
class Step:
    """The changes that became known at once, after `at` seconds: one event, or all differences of a list."""

    at: float
    changes: tuple[Change, ...]


def pod(raw: Object) -> PodSeen | None:
    """Return None for a pod that is not a worker's."""
    metadata, labels = raw["metadata"], raw["metadata"].get("labels", {})
    if JOB not in labels:
        return None
    return PodSeen(
        uid=metadata["uid"],
        name=metadata["name"],
        job=labels[JOB],
        attempt=int(labels[ATTEMPT]),
        index=int(labels.get(INDEX) or metadata.get("annotations", {})[INDEX]),
        phase=raw.get("status", {}).get("phase", "Pending"),
    )


def child(raw: Object) -> ChildSeen | None:
    metadata, labels = raw["metadata"], raw["metadata"].get("labels", {})
    if JOB not in labels:
        return None
    return ChildSeen(metadata["uid"], metadata["name"], labels[JOB], int(labels[ATTEMPT]), owner(raw))


def job(raw: Object) -> JobSeen:
    metadata, status = raw["metadata"], raw.get("status") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    finished = conditions.get("Finished", {})
    return JobSeen(
        uid=metadata["uid"],
        name=metadata["name"],
        phase=status.get("phase", ""),
        attempt=status.get("currentAttempt", 0),
        attempts=tuple((attempt["number"], attempt.get("outcome", "")) for attempt in status.get("attempts") or ()),
        failures=status.get("applicationFailures", 0),
        restarts=status.get("infrastructureRestarts", 0),
        finished=finished.get("status") == "True",
        reason=finished.get("reason", ""),
        start=status.get("startTime", ""),
        end=status.get("completionTime", ""),
    )


def owner(raw: Object) -> str:
    """Return the uid of its controller; "" for an orphan."""
    references = raw["metadata"].get("ownerReferences", ())
    return next((str(reference["uid"]) for reference in references if reference.get("controller")), "")


def changes_from_list(known: Mapping[str, Seen], listed: Iterable[Seen]) -> tuple[Change, ...]:
    """Return the changes from `known`, by uid, to a list: deleted objects first, then new and changed ones."""
    there = {each.uid: each for each in listed}
    gone = [Change(each, gone=True) for uid, each in known.items() if uid not in there]
    return (*gone, *(Change(each) for uid, each in there.items() if known.get(uid) != each))


class Recorder:
    """Follows a namespace in three threads. A context manager; the first lists are complete when it has
    been entered.
    """

    def __init__(self, rest: Rest, namespace: str, *, clock: Callable[[], float]) -> None:
        self._rest = rest
        self._clock = clock
        self._lock = threading.Lock()
        self._steps: list[Step] = []
        self._stopping = threading.Event()
        # How often a watch could not resume where it had ended; the first lists do not count.
        self.gaps = 0
        paths: dict[str, Callable[[Object], Seen | None]] = {
            f"/apis/mptraining.dev/v1alpha1/namespaces/{namespace}/mptrainingjobs": job,
            f"/apis/batch/v1/namespaces/{namespace}/jobs": child,
            f"/api/v1/namespaces/{namespace}/pods": pod,
        }
        self._threads = [
            (threading.Thread(target=self._follow, args=(path, read, first), daemon=True), first)
            for path, read in paths.items()
            for first in [threading.Event()]
        ]

    @property
    def steps(self) -> tuple[Step, ...]:
        """Return all steps so far, in the order in which they became known."""
        with self._lock:
            return tuple(self._steps)

    def __enter__(self) -> Recorder:
        for thread, _ in self._threads:
            thread.start()
        for _, first in self._threads:
            if not first.wait(30):
                raise TimeoutError("no answer to the first list")
        return self

    def __exit__(self, *_: object) -> None:
        # The threads end with the process, or with the API server's next event.
        self._stopping.set()

    def _follow(self, path: str, read: Callable[[Object], Seen | None], first: threading.Event) -> None:
        known: dict[str, Seen] = {}
        version = ""
        while not self._stopping.is_set():
            try:
                if not version:
                    self.gaps += first.is_set()
                    answer = self._rest.get(path)
                    version = answer["metadata"]["resourceVersion"]
                    seen = (read(item) for item in answer.get("items", ()))
                    changes = changes_from_list(known, [each for each in seen if each is not None])
                    self._add(known, changes)
                    first.set()
                for kind, raw in self._events(path, version):
                    if kind == "ERROR":
                        version = ""
                        break
                    version = raw["metadata"]["resourceVersion"]
                    found = read(raw) if kind != "BOOKMARK" else None
                    if found is not None:
                        self._add(known, (Change(found, gone=kind == "DELETED"),))
            except Refused as refused:
                version = "" if refused.code == 410 else version
                self._stopping.wait(0.1)
            except (OSError, ValueError, urllib3.exceptions.HTTPError):
                self._stopping.wait(0.1)

    def _events(self, path: str, version: str) -> Iterator[tuple[str, Any]]:
        query = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": "60"}
        with self._rest.open_watch(path, query) as stream:
            if stream.status != 200:
                raise Refused(stream.status, {"message": stream.data.decode(errors="replace")})
            yield from changes(stream, self._stopping)

    def _add(self, known: dict[str, Seen], changes: tuple[Change, ...]) -> None:
        for change in changes:
            if change.gone:
                known.pop(change.seen.uid, None)
            else:
                known[change.seen.uid] = change.seen
        if changes:
            with self._lock:
                self._steps.append(Step(self._clock(), changes))

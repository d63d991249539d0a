"""Kubernetes events of a job and its children."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from mptraining.cluster.api import ApiServer
from mptraining.cluster.logs import pods
from mptraining_api.kubernetes_api import BATCH_JOBS, EVENTS, Raw
from mptraining_api.status import JOB_UID

# Each costs a request, in which the API server reads all events of the namespace.
MOST_PODS = 16
_THREADS = 8


@dataclass(frozen=True, slots=True, order=True)
class ClusterEvent:
    """A Kubernetes event, seen `count` times, last at `time` (RFC 3339, UTC); `about` is like `Pod flowers-1-0-x`."""

    time: str
    about: str
    type: str
    reason: str
    message: str
    count: int = 1

    def __str__(self) -> str:
        often = f" (x{self.count})" if self.count > 1 else ""
        return f"{self.time}  {self.about}  {self.reason}: {self.message}{often}"


def job_events(server: ApiServer, uid: str) -> list[ClusterEvent]:
    """Return the events of the job, its Indexed Jobs and their pods, the oldest first.

    If there are more than MOST_PODS pods, only those of the last attempts are asked for, first the ones that do not
    run. The API server keeps events for one hour.
    """
    batch_jobs = server.items(BATCH_JOBS, metadata_only=True, labelSelector=f"{JOB_UID}={uid}")
    uids = [uid, *(document["metadata"]["uid"] for document in batch_jobs)]
    newest = sorted(pods(server, uid), key=lambda pod: (-pod.attempt, pod.running, pod.index))

    def of(uid: str) -> list[Raw]:
        return server.items(EVENTS, fieldSelector=f"involvedObject.uid={uid}")

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="events") as pool:
        answers = pool.map(of, [*uids, *(pod.uid for pod in newest[:MOST_PODS])])
        return sorted(_read(document) for documents in answers for document in documents)


def _read(document: Mapping[str, Any]) -> ClusterEvent:
    about = document.get("involvedObject") or {}
    time = document.get("lastTimestamp") or document.get("eventTime") or document["metadata"].get("creationTimestamp")
    return ClusterEvent(
        time=str(time or ""),
        about=f"{about.get('kind', '')} {about.get('name', '')}",
        type=str(document.get("type") or "Normal"),
        reason=str(document.get("reason") or ""),
        message=" ".join(str(document.get("message") or "").split()),
        count=int(document.get("count") or 1),
    )

"""What Kubernetes itself says about a job and its pods: scheduling, images, restarts, evictions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mptraining.cluster.api import EVENTS, ApiServer


@dataclass(frozen=True, slots=True, order=True)
class ClusterEvent:
    """One event, `count` times until `time` (RFC 3339, UTC); `about` as `Pod flowers-1-0-x`."""

    time: str
    about: str
    type: str
    reason: str
    message: str
    count: int = 1

    def __str__(self) -> str:
        often = f" (x{self.count})" if self.count > 1 else ""
        return f"{self.time}  {self.about}  {self.reason}: {self.message}{often}"


def job_events(server: ApiServer, name: str, uid: str) -> list[ClusterEvent]:
    """About the job, its Indexed Jobs and their pods, the oldest first. The API server keeps them for an hour."""
    found: list[Mapping[str, Any]] = list(server.items(EVENTS, fieldSelector=f"involvedObject.uid={uid}"))
    for kind in ("Job", "Pod"):
        found += of_children(server.items(EVENTS, fieldSelector=f"involvedObject.kind={kind}"), name)
    return sorted(map(_read, found))


def of_children(documents: Iterable[Mapping[str, Any]], job: str) -> list[Mapping[str, Any]]:
    """Those about `<job>-<attempt>` and `<job>-<attempt>-<index>-<random>`."""
    theirs = re.compile(rf"{re.escape(job)}-\d+(-\d+-[a-z0-9]+)?")
    return [each for each in documents if theirs.fullmatch(each.get("involvedObject", {}).get("name", ""))]


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

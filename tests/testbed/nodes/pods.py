"""The kubelet's changes to pods, by hand: bound, running, ended in every way that pods end, removed.

Every change is a PATCH of `pods/status` as a kubelet sends it, so that the API server's own validation and the job
controller judge it.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.testbed.kubernetes.access import wait_until
from tests.testbed.kubernetes.rest import STRATEGIC, Object, Refused, Rest

# The security context that the level `restricted` requires of a container that is not a job's.
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_MESSAGE_BYTES = 4096  # the length to which a kubelet truncates a termination message


@dataclass(frozen=True)
class Pod:
    """One pod as last read; `whole` is the object itself."""

    namespace: str
    name: str
    uid: str
    node: str
    phase: str
    terminating: bool
    labels: Mapping[str, str]
    whole: Object = field(repr=False, compare=False)

    @property
    def job(self) -> str:
        """The batch/v1 Job that owns it, "" for none."""
        return self.labels.get("batch.kubernetes.io/job-name", "")

    @property
    def index(self) -> int | None:
        """The completion index in an Indexed Job."""
        text = self.labels.get("batch.kubernetes.io/job-completion-index")
        return None if text is None else int(text)

    @property
    def ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"


def read(whole: Object) -> Pod:
    """Parse the pod from an object of the API."""
    metadata, status = whole["metadata"], whole.get("status", {})
    return Pod(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        node=whole["spec"].get("nodeName", ""),
        phase=status.get("phase", ""),
        terminating="deletionTimestamp" in metadata,
        labels=metadata.get("labels", {}),
        whole=whole,
    )


class Pods:
    """All pods of a control plane. Methods that change one raise Refused (404 when it is gone)."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest

    # -- reading ------------------------------------------------------------------------------------------------

    def select(self, namespace: str, **labels: str) -> list[Pod]:
        """Return the pods sorted by name; `labels` such as `**{"batch.kubernetes.io/job-name": "flowers-1"}`."""
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        listed = self._rest.get(f"/api/v1/namespaces/{namespace}/pods", {"labelSelector": selector})
        return sorted((read(each) for each in listed["items"]), key=lambda pod: pod.name)

    def of_job(self, namespace: str, job: str) -> list[Pod]:
        """Return the pods of the batch/v1 Job, by completion index."""
        return sorted(
            self.select(namespace, **{"batch.kubernetes.io/job-name": job}), key=lambda pod: (pod.index or 0, pod.name)
        )

    def wait_for(self, namespace: str, job: str, count: int, *, seconds: float = 120) -> list[Pod]:
        """Wait until the Job has `count` pods; return them. Raises TimeoutError."""
        wait_until(lambda: len(self.of_job(namespace, job)) == count, f"{count} pods of {job}", seconds=seconds)
        return self.of_job(namespace, job)

    # -- what a scheduler and a kubelet do --------------------------------------------------------------------

    def bind(self, pod: Pod, node: str) -> None:
        """Assign the pod to a node, as a scheduler does."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        self._rest.post(f"{pod.path}/binding", {"metadata": {"name": pod.name}, "target": target})

    def running(self, pod: Pod, *, ready: bool = True) -> None:
        """Mark its containers as running; `ready` is the result of their probes."""
        state = {"running": {"startedAt": now()}}
        self._patch(pod, {"phase": "Running", **_started(pod), **_containers(pod, state, ready=ready)}, ready=ready)

    def waiting(self, pod: Pod, reason: str, message: str = "") -> None:
        """Mark its containers as waiting: ImagePullBackOff, ErrImagePull, CreateContainerConfigError and the like."""
        state = {"waiting": {"reason": reason, "message": message}}
        self._patch(pod, {"phase": "Pending", **_started(pod), **_containers(pod, state)}, ready=False)

    def succeeded(self, pod: Pod, *, message: str = "") -> None:
        """End its containers with 0."""
        self._end(pod, "Succeeded", 0, "Completed", message)

    def failed(self, pod: Pod, code: int, *, message: str = "", reason: str = "Error") -> None:
        """End its containers with `code` and `message` in the termination log."""
        self._end(pod, "Failed", code, reason, message)

    def disrupted(
        self, pod: Pod, *, reason: str = "TerminationByKubelet", code: int | None = 143, message: str = "preempted"
    ) -> None:
        """End it as the cluster does: Failed with the condition DisruptionTarget. Its containers ended with `code`, or
        are not known to have ended (None), as after the loss of a node.
        """
        condition = _condition("DisruptionTarget", True, reason=reason, message=message)
        if code is None:
            self._patch(pod, {"phase": "Failed", "reason": reason}, ready=False, extra=[condition])
        else:
            self._end(pod, "Failed", code, "Error", "", extra=[condition])

    def unschedulable(self, pod: Pod, message: str = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.") -> None:
        """Write the condition of a pod that fits no node."""
        condition = _condition("PodScheduled", False, reason="Unschedulable", message=message)
        self._rest.patch(f"{pod.path}/status", {"status": {"conditions": [condition]}}, kind=STRATEGIC)

    def remove(self, pod: Pod) -> None:
        """Remove a pod whose containers have ended, as a kubelet does at last: DELETE without grace. A pod may be gone
        already.
        """
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}}
        try:
            self._rest.delete(pod.path, options)
        except Refused as refused:
            if refused.code != 404:
                raise

    def _end(
        self, pod: Pod, phase: str, code: int, reason: str, message: str, *, extra: list[Object] | None = None
    ) -> None:
        state = {
            "terminated": {
                "exitCode": code,
                "reason": reason,
                "message": message.encode()[-_MESSAGE_BYTES:].decode(errors="replace"),
                "startedAt": pod.whole.get("status", {}).get("startTime") or now(),
                "finishedAt": now(),
            }
        }
        self._patch(pod, {"phase": phase, **_containers(pod, state)}, ready=False, extra=extra)

    def _patch(self, pod: Pod, status: Object, *, ready: bool, extra: list[Object] | None = None) -> None:
        conditions = [
            _condition("Initialized", True),
            _condition("ContainersReady", ready),
            _condition("Ready", ready),
            *(extra or ()),
        ]
        self._rest.patch(f"{pod.path}/status", {"status": {**status, "conditions": conditions}}, kind=STRATEGIC)


def now() -> str:
    """Return the time in the API's format, to the second."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _condition(type: str, holds: bool, *, reason: str = "", message: str = "") -> Object:
    condition = {"type": type, "status": str(holds), "lastTransitionTime": now()}
    return condition | ({"reason": reason} if reason else {}) | ({"message": message} if message else {})


def _started(pod: Pod) -> Object:
    """Return address and start time, which a kubelet writes once; the address is derived from the uid."""
    number = int(pod.uid[:4], 16)
    address = f"10.{64 + number % 64}.{number >> 8}.{int(pod.uid[4:6], 16)}"
    start = pod.whole.get("status", {}).get("startTime") or now()
    return {"hostIP": "127.0.0.1", "podIP": address, "podIPs": [{"ip": address}], "startTime": start}


def _containers(pod: Pod, state: Object, *, ready: bool = False) -> Object:
    """Return all containers in one state; init containers have completed."""
    done = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now(), "finishedAt": now()}}

    def one(container: Object, state: Object, ready: bool) -> dict[str, Any]:
        return {
            "name": container["name"],
            "image": container.get("image", ""),
            "imageID": "",
            "restartCount": 0,
            "ready": ready,
            "started": "running" in state,
            "state": state,
        }

    spec = pod.whole["spec"]
    return {
        "containerStatuses": [one(each, state, ready) for each in spec["containers"]],
        "initContainerStatuses": [one(each, done, True) for each in spec.get("initContainers", ())],
    }

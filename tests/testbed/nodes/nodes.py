"""Simulated nodes: labels and capacity are real to the scheduler, there are no machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.testbed.kubernetes.rest import Object, Rest
from tests.testbed.nodes.node_server import NodeServer

_ROOM = {"cpu": "256", "memory": "1Ti", "pods": "100000", "ephemeral-storage": "10Ti"}
# With it KWOK is the node's kubelet; without it the Kubelet class or a test is.
KWOK_ANNOTATION = "kwok.x-k8s.io/node"


class Nodes:
    """All nodes of a control plane."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest

    def create(
        self,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        capacity: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, str]] = (),
        kwok: bool = False,
        server: NodeServer | None = None,
    ) -> None:
        """Create a Ready node with plenty of cpu and memory, and `capacity` such as {"nvidia.com/gpu": "4"} in
        addition.

        `server` serves logs and exec of its pods; without one there are none.
        """
        metadata: Object = {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}
        if kwok:
            metadata["annotations"] = {KWOK_ANNOTATION: "fake"}
        self._rest.post("/api/v1/nodes", {"metadata": metadata})
        # Admission taints a new node not-ready; the controller that would remove the taint does not run.
        self._rest.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": [dict(taint) for taint in taints] or None}})
        room = _ROOM | dict(capacity or {})
        status = {"capacity": room, "allocatable": room, **_ready(True)}
        if server is not None:
            status["addresses"] = [{"type": "InternalIP", "address": "127.0.0.1"}]
            status["daemonEndpoints"] = {"kubeletEndpoint": {"Port": server.port}}
        self._rest.patch(f"/api/v1/nodes/{name}/status", {"status": status})

    def set_ready(self, name: str, ready: bool) -> None:
        """Write what the node lifecycle controller writes when a kubelet's heartbeat stops or returns."""
        self._rest.patch(f"/api/v1/nodes/{name}/status", {"status": _ready(ready)})

    def remove(self, name: str) -> None:
        """Delete the node; its pods remain until they are garbage-collected."""
        self._rest.delete(f"/api/v1/nodes/{name}")


def _ready(ready: bool) -> Object:
    reason = "KubeletReady" if ready else "NodeStatusUnknown"
    status = "True" if ready else "Unknown"
    return {"conditions": [{"type": "Ready", "status": status, "reason": reason, "message": "testbed"}]}

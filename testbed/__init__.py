"""A Kubernetes control plane to test and measure against: real servers, nodes and pods that exist on paper alone;
and an object storage.

No container runs here. etcd, API server and controller manager are the real ones (`make servers`), so that admission,
validation, garbage collection and the job controller are Kubernetes' own; the kubelet's part is played by a script.

    with ControlPlane(folder) as control_plane, control_plane.kubelet(lambda pod: Exit(1, after=0.1)) as kubelet:
        control_plane.namespace("team-a")
        control_plane.nodes.create("t4", labels={"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"},
                                   capacity={"nvidia.com/gpu": "4"})
        control_plane.client()                              # the official Python client, as admin
        control_plane.admin_kubeconfig                      # for a subprocess
        control_plane.kubectl("get", "mptj", "-n", "team-a").stdout
        pods = control_plane.pods.wait_for("team-a", "flowers-1", 2)
        kubelet.tell(pods[1], Disrupted())

Tests take the fixtures `control_plane` (one for the session) and `namespace` (a new one for each test) of
tests/conftest.py and the marker `cluster`. Start several seconds of servers only where a test stops or slows them.

Reading order: `control_plane` (the servers and how to reach them), `access` (namespaces, rights, tokens),
`installation` (the operator's), `pods` and `nodes` (the kubelet's part by hand), `behaviours` and `kubelet` (the same
by script), `kwok` (thousands of pods), `queueing` (what Kueue does), `pod_process` (a container that really runs),
`node_server` (logs and exec of their pods), `faults` and `fault_rules` (a proxy that misbehaves), `audit` (what the API
server was asked); beneath them `rest` (JSON over HTTP, watches), `credentials`, `processes` and `binaries`. For
storage: `object_server` (buckets), `storage_proxy` (a slow network before it that fails on demand), `storage_faults`
(what it can do), `storage_server` and `storage_books` (how it does it); `google` (who may use the buckets, and by which
credentials), `google_identity` (what Google answers to whom) `google_server` (its ports) and
`google_names` (its names).
"""

from testbed.audit import Request
from testbed.behaviours import (
    Behaviour,
    Disrupted,
    Exit,
    Lost,
    OutOfMemory,
    Run,
    Script,
    Unscheduled,
    Waiting,
    keep_running,
)
from testbed.binaries import binary, missing
from testbed.control_plane import CONTROLLERS, ControlPlane, Options
from testbed.kubelet import Kubelet
from testbed.node_server import NodeServer
from testbed.nodes import Nodes
from testbed.pods import Pod, Pods
from testbed.processes import NotStarted, Server
from testbed.rest import Refused, Rest, Watch

__all__ = [
    "CONTROLLERS",
    "Behaviour",
    "ControlPlane",
    "Disrupted",
    "Exit",
    "Kubelet",
    "Lost",
    "NodeServer",
    "Nodes",
    "NotStarted",
    "Options",
    "OutOfMemory",
    "Pod",
    "Pods",
    "Refused",
    "Request",
    "Rest",
    "Run",
    "Script",
    "Server",
    "Unscheduled",
    "Waiting",
    "Watch",
    "binary",
    "keep_running",
    "missing",
]

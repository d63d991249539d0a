"""A Kubernetes control plane to test and measure against: real servers, simulated nodes and pods;
and an object storage.

No container runs here. etcd, API server and controller manager are the real ones (`make servers`), so that admission,
validation, garbage collection and the job controller are Kubernetes' own; a script simulates the kubelet.

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
tests/conftest.py. Start several seconds of servers only where a test stops or slows them.

Folders: `kubernetes` (the servers, namespaces and rights, the operator's installation, a queue that acts as Kueue),
`nodes` (the kubelet, simulated by hand or by script, and KWOK's thousands of pods), `faults` (a proxy in front of the
API server), `gcs` (buckets, and a slow network that fails on demand), `google` (sign-in, metadata server, GKE).
All use `processes`, `binaries` and `credentials`.
"""

from tests.testbed.binaries import binary, missing
from tests.testbed.kubernetes.audit import Request
from tests.testbed.kubernetes.control_plane import CONTROLLERS, ControlPlane, Options
from tests.testbed.kubernetes.rest import Refused, Rest, Watch
from tests.testbed.nodes.behaviours import (
    Behaviour,
    Disrupted,
    Exit,
    Lost,
    Run,
    Script,
    Unscheduled,
    Waiting,
    keep_running,
)
from tests.testbed.nodes.kubelet import Kubelet
from tests.testbed.nodes.node_server import NodeServer
from tests.testbed.nodes.nodes import Nodes
from tests.testbed.nodes.pods import Pod, Pods
from tests.testbed.processes import NotStarted, Server

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

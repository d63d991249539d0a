"""A node that is lost with a worker on it, until somebody declares it gone."""

from __future__ import annotations

from typing import Any

from tests.testbed import Behaviour, Exit, Lost, Run
from tests.testbed.nodes.pods import Pod


def test_a_pod_on_a_node_that_is_not_ready_is_waited_for_until_the_node_is_declared_gone(ns: Any) -> None:
    """Only the kubelet may end it: its processes may run. With the taint the pod garbage collector ends it."""
    ns.control_plane.nodes.create("doomed", labels={"mptraining.dev/doomed": "yes"})

    def script(pod: Pod) -> Behaviour:
        return Run() if pod.job.endswith("-1") else Exit(0, after=0.2)

    ns.create("stranded", script, podTemplate={"nodeSelector": {"mptraining.dev/doomed": "yes"}}, workers=1)
    ns.running("stranded")
    pod = ns.control_plane.pods.of_job(ns.namespace, "stranded-1")[0]
    ns.kubelet.tell(pod, Lost())
    ns.control_plane.nodes.set_ready("doomed", False)
    ns.rest.delete(f"/api/v1/namespaces/{ns.namespace}/pods/{pod.name}")
    advice = ns.waits("stranded", "NodeNotReady")
    assert "kubectl taint nodes doomed node.kubernetes.io/out-of-service=nodeshutdown:NoExecute" in advice
    assert ns.get("stranded")["status"]["currentAttempt"] == 1
    taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
    ns.rest.patch("/api/v1/nodes/doomed", {"spec": {"taints": [taint]}})
    # The pod garbage collector runs every 20 s.
    status = ns.until("stranded", lambda status: status.get("currentAttempt") == 2)
    assert status["infrastructureRestarts"] == 1
    ns.rest.patch("/api/v1/nodes/doomed", {"spec": {"taints": None}})
    ns.control_plane.nodes.set_ready("doomed", True)
    ns.phase("stranded", "Succeeded")

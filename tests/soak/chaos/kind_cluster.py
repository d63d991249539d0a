"""Chaos on the kind cluster: real kubelets and the installed operator; `make cluster images` comes first."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Self

import yaml

from hack.cluster.engine import Failed
from hack.cluster.images import VERSION, engine_of_cluster
from hack.cluster.installation import OPERATOR, SYSTEM, configure, install
from hack.cluster.kubectl import KUBECONFIG, kubectl
from hack.cluster.nodes import CONTROL_PLANE
from tests.soak.chaos.calls import awaited, insisted, listed
from tests.soak.chaos.control_plane import NAMESPACE, phases
from tests.soak.chaos.jobs import LOSS, Stub, sweep, trials
from tests.soak.chaos.schedule import Fault, Kind
from tests.testbed.kubernetes.operator_namespace import JOBS, SWEEPS
from tests.testbed.kubernetes.rest import Refused, Rest
from tests.testbed.nodes.behaviours import success_log

_PATIENCE = 240.0
_REPLICAS = f"/api/v1/namespaces/{SYSTEM}/pods"
_LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{OPERATOR}"
# Python runs this module at its start if it is on PYTHONPATH: the trainer becomes a worker that waits.
_SITE = """
import json, os, signal, sys, time

# The first process of a container ignores SIGTERM without a handler.
signal.signal(signal.SIGTERM, lambda *_: os._exit(75))
stub, attempt = json.loads(os.environ["STUB"]), int(os.environ["MPTRAINING_ATTEMPT"])
codes = stub["codes"]
code = codes[min(attempt, len(codes)) - 1][int(os.environ["JOB_COMPLETION_INDEX"])]
time.sleep(stub["seconds"] if code is not None else 10**6)
if code == 0:
    with open("/dev/termination-log", "w") as log:
        log.write(stub["message"].replace('"attempt": 0', f'"attempt": {attempt}'))
os._exit(code)
"""


class KindCluster:
    """A context manager. Watches are cut with the API server alone, and restarts are not counted."""

    def __init__(self) -> None:
        self._engine = engine_of_cluster()
        self.blind: list[tuple[float, float]] = []

    def __enter__(self) -> Self:
        kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=120s")
        install()
        configure({"namespaces": [NAMESPACE], "cpuFallback": True, "graceSeconds": 20})
        level = {"pod-security.kubernetes.io/enforce": "restricted"}
        documents = (
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": level}},
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "stub", "namespace": NAMESPACE},
                "data": {"sitecustomize.py": _SITE},
            },
        )
        kubectl("apply", "-f", "-", text=yaml.safe_dump_all(documents))
        self.rest = _admin()
        return self

    def __exit__(self, *_: object) -> None:
        kubectl("delete", "clusterrolebinding", f"{NAMESPACE}-admin")
        kubectl("delete", "namespace", NAMESPACE, "--wait=false")
        configure({"cpuFallback": True})

    def create(self, stub: Stub) -> None:
        self.rest.post(JOBS.format(NAMESPACE), stub.document(podTemplate=_pod_template(stub)))

    def create_sweep(self) -> None:
        self.rest.post(SWEEPS.format(NAMESPACE), sweep(podTemplate=_pod_template(trials()[0])))

    def inject(self, fault: Fault) -> str | None:
        """As that of `Servers`."""
        if fault.kind is Kind.CUT:
            return None
        if fault.kind is Kind.DELETE:
            return self._delete(fault)
        if fault.kind is Kind.API:
            (pod,) = self._pods("kube-system", "component=kube-apiserver")
            self._kill(CONTROL_PLANE, pod)
            # Its kubelet restarts it at once if it remembers no earlier restarts.
            self._engine("exec", CONTROL_PLANE, "systemctl", "restart", "kubelet")
            time.sleep(1)
            awaited(lambda: self.rest.get("/readyz") == "ok", "API server", seconds=_PATIENCE, logs=self.logs)
        else:
            self._end(fault)
        return ""

    def _end(self, fault: Fault) -> None:
        """Kill a replica, or tell the leader to stop; the Deployment starts another one."""
        leader = awaited(self._leader, "leader", seconds=_PATIENCE, logs=self.logs)
        time.sleep(fault.seconds)
        chosen = leader
        if fault.kind is Kind.KILL:
            replicas = self._pods(SYSTEM, f"app.kubernetes.io/name={OPERATOR}")
            chosen = replicas[int(fault.pick * len(replicas))]
            self._kill(chosen["spec"].get("nodeName", ""), chosen)
        # The kubelet would wait longer with every restart of a container.
        options = {"gracePeriodSeconds": 0} if fault.kind is Kind.KILL else None
        insisted(partial(self.rest.delete, f"{_REPLICAS}/{chosen['metadata']['name']}", options))

    def _kill(self, node: str, pod: Mapping[str, Any]) -> None:
        statuses = pod.get("status", {}).get("containerStatuses") or [{}]
        container = str(statuses[0].get("containerID", "")).removeprefix("containerd://")
        with suppress(Failed):  # it may have ended, or not begun
            self._engine("exec", node, "ctr", "-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL", container)

    def _delete(self, fault: Fault) -> str | None:
        pods = [pod for pod in self._pods(NAMESPACE, "mptraining.dev/job") if pod["status"]["phase"] == "Running"]
        if not pods:
            return None
        metadata = pods[int(fault.pick * len(pods))]["metadata"]
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{metadata['name']}"
        insisted(partial(self.rest.delete, path, {"preconditions": {"uid": metadata["uid"]}}))
        return str(metadata["uid"])

    def _pods(self, namespace: str, selector: str) -> list[dict[str, Any]]:
        """Return the pods that are not being deleted."""
        pods = listed(partial(self.rest.get, f"/api/v1/namespaces/{namespace}/pods", {"labelSelector": selector}))
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def _leader(self) -> dict[str, Any] | None:
        holder = self.rest.get(_LEASE)["spec"].get("holderIdentity", "")
        replicas = self._pods(SYSTEM, f"app.kubernetes.io/name={OPERATOR}")
        return next((pod for pod in replicas if pod["metadata"]["name"] == holder), None)

    def revive(self) -> None:
        """The Deployment does it."""

    def restarts(self) -> None:
        """Return nothing: a replica's count ends with its pod."""

    def phases(self) -> dict[str, int]:
        """Return the leader's jobs by phase."""
        leader = awaited(self._leader, "leader", seconds=_PATIENCE, logs=self.logs)["metadata"]["name"]
        with suppress(Refused, OSError):
            return phases(self.rest.get(f"{_REPLICAS}/{leader}:8080/proxy/metrics"))
        return {}

    def logs(self) -> str:
        """Return the logs of the replicas that run."""
        return kubectl("logs", "-n", SYSTEM, "-l", f"app.kubernetes.io/name={OPERATOR}", "--tail=400", check=False)


def _pod_template(stub: Stub) -> dict[str, Any]:
    content = {"codes": stub.behaviour.codes, "seconds": stub.seconds, "message": success_log(LOSS, 0)}
    return {
        # The smaller image: no worker trains.
        "image": f"mptraining/operator:{VERSION}",
        "env": [{"name": "PYTHONPATH", "value": "/stub"}, {"name": "STUB", "value": json.dumps(content)}],
        "volumes": [{"name": "stub", "configMap": {"name": "stub"}}],
        "volumeMounts": [{"name": "stub", "mountPath": "/stub"}],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
    }


def _admin() -> Rest:
    """Return a client with all rights, by a token, which the record needs."""
    account = f"{NAMESPACE}-admin"
    kubectl("create", "serviceaccount", account, "-n", NAMESPACE)
    kubectl("delete", "clusterrolebinding", account, "--ignore-not-found")
    bound = f"--serviceaccount={NAMESPACE}:{account}"
    kubectl("create", "clusterrolebinding", account, "--clusterrole=cluster-admin", bound)
    token = kubectl("create", "token", account, "-n", NAMESPACE, "--duration=12h").strip()
    cluster = yaml.safe_load(KUBECONFIG.read_text(encoding="utf-8"))["clusters"][0]["cluster"]
    authority = KUBECONFIG.with_name("authority.crt")
    authority.write_bytes(b64decode(cluster["certificate-authority-data"]))
    return Rest(cluster["server"], token=token, authority=authority, agent=NAMESPACE)

"""Chaos on the kind cluster: real kubelets and nodes, the installed operator, two jobs that really train.

Requires `make cluster images`. Everything is in the namespace `chaos`; at the end nodes and operator are restored.
"""

from __future__ import annotations

import time
from base64 import b64decode
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any, Self

import yaml

from hack.cluster.engine import Failed
from hack.cluster.images import VERSION, engine_of_cluster
from hack.cluster.installation import OPERATOR, SYSTEM, configure, install
from hack.cluster.kubectl import KUBECONFIG, kubectl
from hack.cluster.nodes import CONTROL_PLANE, WORKERS
from tests.soak.chaos import jobs, training
from tests.soak.chaos.calls import insisted, listed
from tests.soak.chaos.jobs import Stub
from tests.soak.chaos.replicas import PODS, PROGRAM, Replicas, container, kill
from tests.soak.chaos.run import Counted
from tests.soak.chaos.schedule import Fault, Kind, Pace
from tests.soak.chaos.verdict import InjectedFault
from tests.testbed.kubernetes.rest import MERGE, Refused, Rest

NAMESPACE = "chaos"
_JOBS = f"/apis/mptraining.dev/v1alpha1/namespaces/{NAMESPACE}/mptrainingjobs"
_WORKERS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_PATIENCE = 240.0
# A node is unavailable ten times as long as other faults last: several of them happen meanwhile.
_OUT = 10
# The node controller takes this long to mark a silent node, and its pods end late; their ends belong to the fault.
_AFTER_PAUSE, _AFTER_DRAIN = 120.0, 20.0
_BEFORE, _AFTER = 1.0, 5.0
SETTINGS: Mapping[str, Any] = MappingProxyType(
    {
        # Its metrics must not count the jobs of another test.
        "namespaces": [NAMESPACE],
        "cpuFallback": True,
        "graceSeconds": 20,
        "unreachableSeconds": 5,
        "stuckPodSeconds": 10.0,
        "restart": {"programSeconds": 1.0, "infrastructureSeconds": 0.5},
        "lease": {"durationSeconds": 4, "renewSeconds": 1.0},
    }
)


class KindCluster:
    """A context manager. Drains and pauses end by themselves, while other faults continue."""

    pace = Pace(wait=(0.2, 1.5), lasts=(0.5, 3.0))
    seconds = (5.0, 20.0)
    namespace = NAMESPACE
    own = frozenset({"kube-root-ca.crt", "chaos-stub"})
    kinds: Mapping[Kind, float] = MappingProxyType(
        {Kind.SWITCH: 0.1, Kind.CUT: 0.1, Kind.API: 0.04, Kind.DELETE: 0.3, Kind.DRAIN: 0.08, Kind.PAUSE: 0.08}
    )

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._engine = engine_of_cluster()
        # By node: the end of its drain or pause, and the command that ends it.
        self._out: dict[str, tuple[float, Callable[[], object]]] = {}

    def __enter__(self) -> Self:
        kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=120s")
        install()
        configure(SETTINGS, program=["python", "-c", PROGRAM])
        level = {"pod-security.kubernetes.io/enforce": "restricted"}
        stub = {"name": "chaos-stub", "namespace": NAMESPACE}
        documents = (
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": level}},
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": stub, "data": {"sitecustomize.py": jobs.SITE}},
            training.claim(NAMESPACE),
        )
        kubectl("apply", "-f", "-", text=yaml.safe_dump_all(documents))
        self.rest = admin(NAMESPACE)
        self._replicas = Replicas(
            self.rest, self._engine, clock=self._clock, out=lambda: frozenset(self._out), until=self._until
        )
        return self

    def __exit__(self, *_: object) -> None:
        for node in list(self._out):
            self._give_back(node)
        kubectl("delete", "namespace", NAMESPACE, "--wait=false")
        kubectl("delete", "clusterrolebinding", f"{NAMESPACE}-admin", "--ignore-not-found")
        configure({"cpuFallback": True})

    # -- jobs ---------------------------------------------------------------------------------------------------

    def create(self, stub: Stub) -> None:
        template = {
            "image": f"mptraining/operator:{VERSION}",
            "env": [{"name": name, "value": value} for name, value in jobs.environment(stub).items()],
            "volumes": [{"name": "stub", "configMap": {"name": "chaos-stub"}}],
            "volumeMounts": [{"name": "stub", "mountPath": "/stub"}],
            "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
        }
        self.rest.post(_JOBS, stub.document(**template))

    def train(self) -> tuple[str, ...]:
        for document in training.documents():
            insisted(partial(self.rest.post, _JOBS, document))
        return training.NAMES

    def digests(self) -> dict[str, tuple[str, str]]:
        """Run the undisturbed jobs now, without any fault."""
        self._until(lambda: not self._out, "the end of drains and pauses")
        return training.compared(self, seconds=600.0)

    # -- faults -------------------------------------------------------------------------------------------------

    def inject(self, fault: Fault) -> InjectedFault:
        """Raises TimeoutError if the cluster does not recover."""
        began = self._clock()
        pods: frozenset[str] = frozenset()
        nodes: frozenset[str] = frozenset()
        lasting = 0.0
        done = True
        if fault.kind in (Kind.KILL, Kind.SWITCH):
            self._replicas.end(fault)
        elif fault.kind in (Kind.CUT, Kind.API):
            if fault.kind is Kind.API:
                self._restart_api_server()
            else:
                done = self._replicas.cut() > 0
            self.counted.blind.append((began - _BEFORE, self._clock() + _AFTER))
        elif fault.kind is Kind.DELETE:
            pods = self._delete(fault)
            done = bool(pods)
        elif fault.kind in (Kind.DRAIN, Kind.PAUSE):
            nodes = self._take_out(fault)
            lasting = _OUT * fault.seconds + (_AFTER_PAUSE if fault.kind is Kind.PAUSE else _AFTER_DRAIN)
        else:
            raise ValueError(fault.kind)
        return InjectedFault(began, self._clock() + lasting, pods, nodes, done)

    def _restart_api_server(self) -> None:
        path = f"/api/v1/namespaces/kube-system/pods/kube-apiserver-{CONTROL_PLANE}"
        pod = insisted(partial(self.rest.get, path)) or {}
        kill(self._engine, CONTROL_PLANE, container(pod))
        # Its kubelet restarts it, and the processes that depend on it: at once, if it remembers no earlier restarts.
        self._engine("exec", CONTROL_PLANE, "systemctl", "restart", "kubelet")
        time.sleep(1)
        self._until(lambda: self.rest.get("/readyz") == "ok", "an API server")

    def _delete(self, fault: Fault) -> frozenset[str]:
        pods = [pod for pod in listed(partial(self.rest.get, _WORKERS)) if _lives(pod)]
        if not pods:
            return frozenset()
        pod = sorted(pods, key=lambda each: str(each["metadata"]["name"]))[int(fault.pick * len(pods))]
        uid = str(pod["metadata"]["uid"])
        with suppress(Refused, OSError):
            self.rest.delete(f"{_WORKERS}/{pod['metadata']['name']}", {"preconditions": {"uid": uid}})
        return frozenset({uid})

    def _take_out(self, fault: Fault) -> frozenset[str]:
        """Drain or pause one worker node, if the other one is available."""
        self._until(lambda: not self._out, "the end of another node's trouble")
        node = WORKERS[int(fault.pick * len(WORKERS))]
        lasts = _OUT * fault.seconds
        if fault.kind is Kind.PAUSE:
            # The kernel does not freeze all processes in time on a busy machine.
            self._until(lambda: self._engine.asked("pause", node), f"pause of {node}")
            self._out[node] = self._clock() + lasts, lambda: self._engine("unpause", node)
            return frozenset({node})
        path = f"/api/v1/nodes/{node}"
        insisted(partial(self.rest.patch, path, {"spec": {"unschedulable": True}}, kind=MERGE))
        self._out[node] = (
            self._clock() + lasts,
            lambda: self.rest.patch(path, {"spec": {"unschedulable": None}}, kind=MERGE),
        )
        for collection in (_WORKERS, PODS):
            for pod in listed(partial(self.rest.get, collection, {"fieldSelector": f"spec.nodeName={node}"})):
                name = pod["metadata"]["name"]
                eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
                with suppress(Refused, OSError):  # it has ended meanwhile, or this is the last replica of the operator
                    self.rest.post(f"{collection}/{name}/eviction", eviction)
        return frozenset({node})

    def _give_back(self, node: str) -> None:
        until, end = self._out.pop(node)
        try:
            end()
        except (Refused, OSError, Failed):
            self._out[node] = until, end
            raise

    def revive(self) -> None:
        with suppress(Refused, OSError, Failed):
            for node in [node for node, (until, _) in self._out.items() if self._clock() >= until]:
                self._give_back(node)
            self._replicas.ask()

    # -- asking -------------------------------------------------------------------------------------------------

    @property
    def counted(self) -> Counted:
        return self._replicas.counted

    @property
    def offsets(self) -> list[int]:
        return self._replicas.offsets

    def phases(self) -> dict[str, int]:
        return self._replicas.phases()

    def restarts(self) -> int:
        return self._replicas.restarts()

    def logs(self) -> str:
        """Return the logs of the replicas that run."""
        return kubectl("logs", "-n", SYSTEM, "-l", f"app.kubernetes.io/name={OPERATOR}", "--tail=400", check=False)

    def _until(self, look: Callable[[], Any], what: str) -> Any:
        end = time.monotonic() + _PATIENCE
        while True:
            with suppress(Refused, OSError):
                if found := look():
                    return found
            if time.monotonic() > end:
                raise TimeoutError(f"no {what} after {_PATIENCE:.0f} s")
            self.revive()
            time.sleep(0.3)


def admin(namespace: str) -> Rest:
    """Return a client with all rights, by a service account of that namespace.

    It has a token, which the record's client needs, instead of the certificate in the kubeconfig.
    """
    account = f"{namespace}-admin"
    kubectl("create", "serviceaccount", account, "-n", namespace)
    kubectl("delete", "clusterrolebinding", account, "--ignore-not-found")
    bound = f"--serviceaccount={namespace}:{account}"
    kubectl("create", "clusterrolebinding", account, "--clusterrole=cluster-admin", bound)
    token = kubectl("create", "token", account, "-n", namespace, "--duration=12h").strip()
    known = yaml.safe_load(KUBECONFIG.read_text(encoding="utf-8"))["clusters"][0]["cluster"]
    authority = KUBECONFIG.with_name("authority.crt")
    authority.write_bytes(b64decode(known["certificate-authority-data"]))
    return Rest(known["server"], token=token, authority=authority, agent=namespace)


def _lives(pod: Mapping[str, Any]) -> bool:
    over = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return not over and "deletionTimestamp" not in pod["metadata"]

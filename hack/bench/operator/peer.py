"""Kubeflow's training-operator, the last release with TFJob, as a contender.

Outside of a cluster it needs a webhook configuration, a Secret for its certificate, and that
certificate as files; all of them are created here, and the webhook matches no object.
"""

from __future__ import annotations

import base64
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hack.bench.operator.own_operator import EVERYTHING
from tests.testbed import ControlPlane, Server, binary
from tests.testbed.binaries import FOLDER, PEER
from tests.testbed.kubernetes.access import wait_until
from tests.testbed.kubernetes.rest import Object
from tests.testbed.processes import free_ports

CRDS = FOLDER.parent / "peer-crds"
SYSTEM = "kubeflow"
ACCOUNT = "training-operator"
USER = f"system:serviceaccount:{SYSTEM}:{ACCOUNT}"
RAISED = ("--kube-api-qps", "2000", "--kube-api-burst", "4000", "--controller-threads", "8")

_SECRET = f"/api/v1/namespaces/{SYSTEM}/secrets/training-operator-webhook-cert"
# The peer has this folder as a constant, whatever the temporary directory is.
_SERVED = Path("/tmp/k8s-webhook-server/serving-certs")
# The peer creates it at its first start, which takes seconds; kept for the next ones.
_certificate: dict[str, str] = {}


def job(name: str, workers: int) -> Object:
    """Return a TFJob of so many workers."""
    pod = {"spec": {"containers": [{"name": "tensorflow", "image": "none"}]}}
    worker = {"replicas": workers, "restartPolicy": "Never", "template": pod}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": name},
        "spec": {"tfReplicaSpecs": {"Worker": worker}},
    }


@contextmanager
def running(control_plane: ControlPlane, flags: Sequence[str] = ()) -> Iterator[Server]:
    """Start the operator with its default flags and `flags`; wait until it is ready."""
    for path in sorted(CRDS.glob("kubeflow.org_*.yaml")):
        control_plane.apply_crd(path)
    control_plane.namespace(SYSTEM)
    token = control_plane.service_account(SYSTEM, ACCOUNT, rules=EVERYTHING, cluster_wide=True)
    kubeconfig = control_plane.kubeconfig("peer", token)
    rest = control_plane.rest
    secret: Object = {"metadata": {"name": "training-operator-webhook-cert"}, "data": _certificate}
    rest.post(f"/api/v1/namespaces/{SYSTEM}/secrets", secret)
    rest.post("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", _webhook())
    if not _certificate:
        with _started(control_plane, kubeconfig, ()):
            wait_until(lambda: "tls.crt" in (rest.get(_SECRET).get("data") or {}), "the peer's certificate", seconds=60)
            _certificate.update(rest.get(_SECRET)["data"])
    _SERVED.mkdir(parents=True, exist_ok=True)
    for name, content in _certificate.items():
        (_SERVED / name).write_bytes(base64.b64decode(content))
    with _started(control_plane, kubeconfig, flags) as server:
        yield server


@contextmanager
def _started(control_plane: ControlPlane, kubeconfig: Path, flags: Sequence[str]) -> Iterator[Server]:
    metrics, probe, webhook = free_ports(3)
    command: list[str | Path] = [
        binary(PEER),
        *(f"--metrics-bind-address=127.0.0.1:{metrics}", f"--health-probe-bind-address=127.0.0.1:{probe}"),
        f"--webhook-server-port={webhook}",
        *flags,
    ]
    environment = {"KUBECONFIG": str(kubeconfig), "MY_POD_NAMESPACE": SYSTEM}
    server = Server(command, log=control_plane.logs / "peer.log", environment=environment)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def answers() -> bool:
        with opener.open(f"http://127.0.0.1:{probe}/healthz", timeout=2) as answer:
            return bool(answer.status == 200)

    with server:
        server.wait_until(answers, seconds=60)
        yield server


def _webhook() -> Object:
    service = {"name": ACCOUNT, "namespace": SYSTEM, "path": "/none"}
    webhook = {
        "name": "none.training-operator.kubeflow.org",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Ignore",
        "clientConfig": {"service": service},
        "rules": [
            {"apiGroups": ["none.invalid"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["none"]}
        ],
    }
    return {"metadata": {"name": "validator.training-operator.kubeflow.org"}, "webhooks": [webhook]}

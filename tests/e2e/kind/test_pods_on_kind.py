"""What the status says of pods that other parties change, refuse, kill or leave waiting: on real kubelets.

A mutating webhook adds containers to pods as a mesh does. All jobs run at once.
"""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import yaml

from hack.cluster.engine import Engine, Failed
from hack.cluster.images import VERSION, engine_of_cluster
from tests.testbed.kind_cluster import Kind
from tests.testbed.kubernetes.operator_namespace import condition

IMAGE = f"mptraining/trainer:{VERSION}"
# Seconds after which each wait has a reason.
EXPLAINED = 90
DIGITS = {"train": ["/opt/mptraining/digits/train-*.tfrecord"]}
TRAINS = {
    "accelerator": {"type": "cpu"},
    "program": {"application": {"name": "mlp", "classes": 10}},
    "data": DIGITS,
    "training": {"epochs": 1, "batchSize": {"global": 64}},
}
FOREVER = "import time; time.sleep(100000)"
# The webhook's patches, by the pod's label `inject`.
INJECTED: dict[str, tuple[str, dict[str, Any]]] = {
    "runs-on": ("containers", {"image": IMAGE, "command": ["python", "-c", FOREVER]}),
    "ends-1": ("containers", {"image": IMAGE, "command": ["python", "-c", "import sys; sys.exit(1)"]}),
    "no-image": ("containers", {"image": "registry.invalid/mesh:1"}),
    "sidecar": (
        "initContainers",
        {"image": IMAGE, "command": ["python", "-c", FOREVER], "restartPolicy": "Always"},
    ),
    "init-runs-on": ("initContainers", {"image": IMAGE, "command": ["python", "-c", FOREVER]}),
    "init-fails": ("initContainers", {"image": IMAGE, "command": ["python", "-c", "import sys; sys.exit(3)"]}),
}
# Without output.uri worker 0 keeps its model for ten minutes.
SOON = [{"name": "MPTRAINING_MODEL_WAIT_SECONDS", "value": "1"}]


def of_label(inject: str, **spec: Any) -> dict[str, Any]:
    return {**TRAINS, "podTemplate": {"labels": {"inject": inject}, "env": SOON}, **spec}


# Name, spec, and the end that the job has; None: it waits.
JOBS: dict[str, tuple[dict[str, Any], str | None]] = {
    "proxy-runs-on": (of_label("runs-on"), "Succeeded"),
    "proxy-ends-1": (of_label("ends-1"), "Succeeded"),
    "fails-with-proxy": (
        of_label("runs-on", data={"train": ["/absent/train-*.tfrecord"]}),
        "InvalidData",
    ),
    "two-with-proxies": (of_label("runs-on", workers=2), "Succeeded"),
    "native-sidecar": (of_label("sidecar"), "Succeeded"),
    "proxy-without-image": (of_label("no-image"), "Succeeded"),
    "init-runs-on": (of_label("init-runs-on"), None),
    "init-fails": (of_label("init-fails", runPolicy={"backoffLimit": 0}), "ProgramFailed"),
    "queue-of-nobody": ({**TRAINS, "scheduling": {"queueName": "gpus"}}, None),
    "tag-latest": ({**TRAINS, "podTemplate": {"image": "mptraining/trainer:latest"}}, None),
    "no-secret": (
        {
            **TRAINS,
            "podTemplate": {
                "env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "absent", "key": "k"}}}],
            },
        },
        None,
    ),
    "no-account": ({**TRAINS, "podTemplate": {"serviceAccountName": "absent"}}, None),
    "no-label": ({**TRAINS, "podTemplate": {"nodeSelector": {"disk": "fast"}}}, None),
    "no-claim": (
        {
            **TRAINS,
            "podTemplate": {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "absent"}}]},
        },
        None,
    ),
    "limit-range": (TRAINS, None),
}
# Names the reason of the condition Running after `EXPLAINED` seconds, and a part of its next step.
WAITS = {
    "init-runs-on": ("StartsSlowly", "kubectl logs init-runs-on-1-0"),
    "queue-of-nobody": ("QueueNotServed", "Kueue is not installed"),
    "tag-latest": ("ImagePullFailed", "its tag is latest"),
    "no-secret": ("ContainerNotStarting", "env or envFrom"),
    "no-account": ("PodsRefused", "podTemplate.serviceAccountName"),
    "no-label": ("Unschedulable", "disk=fast"),
    "no-claim": ("Unschedulable", "podTemplate.volumes"),
    "limit-range": ("PodsRefused", "podTemplate.resources.limits.memory"),
}
# Of a namespace of its own, as it concerns every pod.
LIMITS = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "small"},
    "spec": {"limits": [{"type": "Container", "default": {"memory": "256Mi"}}]},
}


class Webhook(BaseHTTPRequestHandler):
    """Adds the container of the pod's label `inject`, before the trainer."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
        pod = request["object"]
        field, container = INJECTED[pod["metadata"]["labels"]["inject"]]
        present = pod["spec"].get(field)
        value: Any = {"name": "mesh", **container}
        operation = {"op": "add", "path": f"/spec/{field}/0", "value": value}
        if not present:
            operation = {"op": "add", "path": f"/spec/{field}", "value": [value]}
        patch = base64.b64encode(json.dumps([operation]).encode()).decode()
        response = {"uid": request["uid"], "allowed": True, "patchType": "JSONPatch", "patch": patch}
        body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""


def gateway_of(engine: Engine) -> str:
    """Return the host's IPv4 address in the network of the cluster."""
    (network,) = json.loads(engine("network", "inspect", "kind"))
    # Podman's form, then Docker's.
    ranges = network.get("subnets") or network["IPAM"]["Config"]
    for each in ranges:
        gateway = str(each.get("gateway") or each.get("Gateway") or "")
        if "." in gateway:
            return gateway
    raise Failed("the network kind has no IPv4 gateway")


@pytest.fixture(scope="module")
def webhook(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder, address = tmp_path_factory.mktemp("webhook"), gateway_of(engine_of_cluster())
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=mesh"),
            *("-addext", f"subjectAltName=IP:{address}", "-keyout", "key.pem", "-out", "cert.pem"),
        ],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    server = ThreadingHTTPServer((address, 0), Webhook)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = {
        "url": f"https://{address}:{server.server_address[1]}/",
        "caBundle": base64.b64encode((folder / "cert.pem").read_bytes()).decode(),
    }
    configuration = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "mesh.example"},
        "webhooks": [
            {
                "name": "mesh.example.com",
                "clientConfig": client,
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
                "objectSelector": {"matchExpressions": [{"key": "inject", "operator": "Exists"}]},
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
        ],
    }
    kind.kubectl("apply", "-f", "-", text=yaml.safe_dump(configuration))
    yield
    kind.kubectl("delete", "mutatingwebhookconfiguration", "mesh.example", "--ignore-not-found")
    server.shutdown()
    server.server_close()


def namespace_of(job: str) -> str:
    return "pods-limited" if job == "limit-range" else "pods"


@pytest.fixture(scope="module")
def began(kind: Kind, webhook: None) -> Iterator[float]:
    """Create all jobs; return the time."""
    namespaces = ["pods", "pods-limited"]
    kind.kubectl("delete", "namespace", "--ignore-not-found", "--timeout=300s", *namespaces)
    for name in namespaces:
        kind.kubectl("create", "namespace", name)
    kind.kubectl("apply", "-n", "pods-limited", "-f", "-", text=yaml.safe_dump(LIMITS))
    # The jobs that train fill the nodes, and then that is the reason of every job after them.
    for name, (spec, _) in sorted(JOBS.items(), key=lambda job: job[0] not in WAITS):
        document = {
            "apiVersion": "mptraining.dev/v1alpha1",
            "kind": "MPTrainingJob",
            "metadata": {"name": name},
            "spec": spec,
        }
        kind.kubectl("apply", "-n", namespace_of(name), "-f", "-", text=yaml.safe_dump(document))
    yield time.monotonic()
    kind.kubectl("delete", "namespace", "--ignore-not-found", "--wait=false", *namespaces)


@pytest.fixture(scope="module")
def explained(kind: Kind, began: float) -> dict[str, dict[str, Any]]:
    """Return all jobs by name as they are `EXPLAINED` seconds after the last was created, read by one request."""
    time.sleep(max(0.0, began + EXPLAINED - time.monotonic()))
    found = json.loads(kind.kubectl("get", "mptj", "--all-namespaces", "-o", "json"))["items"]
    return {each["metadata"]["name"]: each for each in found}


@pytest.mark.parametrize("job", WAITS)
def test_a_wait_has_a_reason_and_a_next_step(explained: dict[str, dict[str, Any]], job: str) -> None:
    reason, step = WAITS[job]
    running = condition(explained[job]["status"], "Running")
    assert running["reason"] == reason, running
    assert step in running["message"]


@pytest.mark.parametrize(("job", "reason"), [(job, end) for job, (_, end) in JOBS.items() if end])
def test_a_job_ends_as_its_trainer_does(kind: Kind, began: float, job: str, reason: str) -> None:
    deadline = began + 900
    while True:
        status = kind.get("-n", "pods", "mptj", job)["status"]
        if status.get("phase") in ("Succeeded", "Failed") or time.monotonic() > deadline:
            break
        time.sleep(1)
    found = condition(status, "Complete" if reason == "Succeeded" else "Failed")
    assert found.get("reason") == reason, status.get("conditions")

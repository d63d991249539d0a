"""Google inside the kind cluster: pods that call storage.googleapis.com, sign in, or call a metadata server, reach the
emulator `tests.testbed.google.server` and cannot tell the difference.

CoreDNS forwards Google's names to it, as on a network with Private Google Access. Each worker node answers on
169.254.169.254, the address of GKE's metadata server, and identifies the calling pod by its address. Objects are
those of `buckets`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from hack.cluster.images import VERSION, engine_of_cluster
from hack.cluster.nodes import WORKERS
from tests.e2e.kind import buckets
from tests.testbed.credentials import create_server_keys
from tests.testbed.google import dns, identity
from tests.testbed.google import server as google_server
from tests.testbed.google.identity import Realm

AUTHORITY = "google-authority"
_CODE, _REALM = "/opt/google", "/opt/realm"
_BEGIN = "# tests/e2e/kind/identities.py\n"


@contextmanager
def started(kind: Any, realm: Realm, folder: Path) -> Iterator[None]:
    """Start the emulator; `buckets` must run. The ConfigMap AUTHORITY in the tests' namespace has its certificate,
    `ca.crt`.
    """
    keys = create_server_keys(folder / "keys", *google_server.HOSTS)
    engine = engine_of_cluster()
    for node in WORKERS:
        engine("exec", node, "ip", "address", "replace", f"{google_server.METADATA}/32", "dev", "lo")
    kind.kubectl("apply", "-f", "-", text=yaml.safe_dump_all(_objects(realm, folder / "keys")))
    authority = {"ca.crt": keys.authority.read_text(encoding="utf-8")}
    kind.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": AUTHORITY}, "data": authority})
    space = ("-n", buckets.NAMESPACE)
    try:
        kind.kubectl("wait", *space, "pod/google", "--for=condition=Ready", "--timeout=300s")
        kind.kubectl("rollout", "status", *space, "daemonset/metadata", "--timeout=300s")
        _names(kind, kind.kubectl("get", *space, "service/google", "-o", "jsonpath={.spec.clusterIP}"))
        yield
    finally:
        _names(kind, None)
        for node in WORKERS:
            engine("exec", node, "ip", "address", "delete", f"{google_server.METADATA}/32", "dev", "lo")
        kind.kubectl("delete", "clusterrole,clusterrolebinding", "google-metadata", "--ignore-not-found")


def _names(kind: Any, server: str | None) -> None:
    """Make CoreDNS forward Google's names to `server`; without a server restore its configuration."""
    where = ("-n", "kube-system")
    found = json.loads(kind.kubectl("get", "configmap", "coredns", *where, "-o", "json"))
    file: str = found["data"]["Corefile"].partition(_BEGIN)[0]
    if server:
        file += f"{_BEGIN}googleapis.com:53 google.internal:53 {{\n    forward . {server}\n}}\n"
    patch = json.dumps({"data": {"Corefile": file}})
    kind.kubectl("patch", "configmap", "coredns", *where, "--type=merge", "-p", patch)
    # It would notice by itself, within two minutes.
    kind.kubectl("rollout", "restart", "deployment/coredns", *where)
    kind.kubectl("rollout", "status", "deployment/coredns", *where, "--timeout=300s")


def _objects(realm: Realm, keys: Path) -> list[dict[str, Any]]:
    # Only these modules of the package: the others start servers.
    files = [Path(str(each.__file__)) for each in (identity, dns, google_server)]
    code = {file.name: file.read_text(encoding="utf-8") for file in files}
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata("google"),
        "data": {**code, "__init__.py": ""},
    }
    secrets = {name: (keys / name).read_bytes() for name in ("server.crt", "server.key")}
    secrets["realm.json"] = realm.model_dump_json().encode()
    data = {name: base64.b64encode(content).decode() for name, content in secrets.items()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": _metadata("google"), "data": data}
    objects = buckets.ADDRESS.removeprefix("http://")
    names = ("--dns=0.0.0.0:8053", f"--address=google.{buckets.NAMESPACE}.svc")
    server = _container("--https=0.0.0.0:8443", f"--keys={_REALM}", f"--objects={objects}", *names)
    server |= {"readinessProbe": {"tcpSocket": {"port": 8443}, "periodSeconds": 1}}
    metadata = _container(f"--http={google_server.METADATA}:80")
    metadata |= {"securityContext": {"runAsUser": 0}}
    labels, node = {"app": "google"}, {"app": "google-metadata"}
    ports = [
        {"name": "https", "port": 443, "targetPort": 8443},
        {"name": "dns", "port": 53, "targetPort": 8053, "protocol": "UDP"},
    ]
    service = {"selector": labels, "ports": ports}
    # The source address must be the calling pod's own: so the server is in the node's network, without a proxy.
    template = {
        "metadata": {"labels": node},
        "spec": {
            "hostNetwork": True,
            "serviceAccountName": "metadata",
            "containers": [metadata],
            "volumes": _volumes(),
        },
    }
    daemon = {"selector": {"matchLabels": node}, "template": template}
    rules = [{"apiGroups": [""], "resources": ["pods", "serviceaccounts"], "verbs": ["get", "list"]}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "google-metadata"}
    subject = {"kind": "ServiceAccount", "name": "metadata", "namespace": buckets.NAMESPACE}
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "google-metadata"}}
    return [
        config_map,
        secret,
        {"apiVersion": "v1", "kind": "Service", "metadata": _metadata("google"), "spec": service},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {**_metadata("google"), "labels": labels},
         "spec": {"containers": [server], "volumes": _volumes()}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata("metadata")},
        {**rbac, "kind": "ClusterRole", "rules": rules},
        {**rbac, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": [subject]},
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": _metadata("metadata"), "spec": daemon},
    ]  # fmt: skip


def _container(*arguments: str) -> dict[str, Any]:
    return {
        "name": "google",
        "image": f"mptraining/operator:{VERSION}",
        "command": ["python", "-m", "tests.testbed.google.server", f"{_REALM}/realm.json", *arguments],
        "env": [{"name": "PYTHONPATH", "value": _CODE}],
        "volumeMounts": [
            {"name": "code", "mountPath": f"{_CODE}/tests/testbed/google"},
            {"name": "realm", "mountPath": _REALM},
        ],
    }


def _volumes() -> list[dict[str, Any]]:
    return [
        {"name": "code", "configMap": {"name": "google"}},
        {"name": "realm", "secret": {"secretName": "google"}},
    ]


def _metadata(name: str) -> dict[str, Any]:
    return {"name": name, "namespace": buckets.NAMESPACE}

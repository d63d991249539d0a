"""Ways to a cluster without a kubeconfig: GKE by Google's credentials, and from inside a pod.

Two HTTP answers replace Google; credentials, the kubernetes client and the API server are the real ones.
"""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from mptraining.cluster import gke as google
from mptraining.cluster.api import ApiServer
from mptraining.cluster.connection import Cluster, connect
from mptraining.cluster.errors import ClusterProblem, NoCluster, NotAllowed, NotFound, NotLoggedIn, Unreachable
from mptraining_api.kubernetes_api import JOBS
from tests.testbed import ControlPlane
from tests.testbed.google.gke import GkeServer

PLACE = "p/europe-west4/team"
NAME = "projects/p/locations/europe-west4/clusters/team"


@pytest.fixture
def gke(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[GkeServer]:
    """A GKE API with one cluster, which is the control plane."""
    with GkeServer(control_plane.rest.token) as started:
        for name, value in {**started.environment(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
        started.clusters[NAME] = {
            "name": "team",
            "status": "RUNNING",
            "endpoint": control_plane.server.removeprefix("https://"),
            "masterAuth": {"clusterCaCertificate": base64.b64encode(authority(control_plane)).decode()},
        }
        yield started


def authority(control_plane: ControlPlane) -> bytes:
    return (control_plane.folder / "keys" / "ca.crt").read_bytes()


def test_gke_by_address_and_own_authority(
    gke: GkeServer, control_plane: ControlPlane, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    for _ in range(2):
        server = connect(Cluster(gke=PLACE, namespace=namespace))
        assert (server.name, server.namespace) == ("GKE cluster team", namespace)
        assert server.items(JOBS) == []
        # All commands share one file with the certificate, and repair it.
        (certificate,) = (tmp_path / "cache").rglob("*.crt")
        assert (certificate.stat().st_mode & 0o777, certificate.read_bytes()) == (0o600, authority(control_plane))
        certificate.write_bytes(b"")
    assert gke.asked == 2 * ["/token", f"/v1/{NAME}"]
    assert list(temporary.iterdir()) == []


def test_gke_by_its_dns_endpoint(
    gke: GkeServer, control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificate is checked against the authorities that this machine trusts, not against the cluster's own."""
    endpoint = gke.clusters[NAME]["endpoint"].replace("127.0.0.1", "localhost")
    gke.clusters[NAME] |= {
        "endpoint": "192.0.2.1",
        "masterAuth": {},
        "controlPlaneEndpointsConfig": {"dnsEndpointConfig": {"endpoint": endpoint, "allowExternalTraffic": True}},
    }
    monkeypatch.setenv("SSL_CERT_FILE", str(control_plane.folder / "keys" / "ca.crt"))
    server = connect(Cluster(gke=PLACE, namespace=namespace))
    assert server.api.configuration.host == f"https://{endpoint}"
    assert server.items(JOBS) == []
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(Unreachable, match="certificate verify failed"):
        connect(Cluster(gke=PLACE, namespace=namespace)).items(JOBS)


def test_a_token_that_has_run_out_is_replaced_before_the_next_request(gke: GkeServer, namespace: str) -> None:
    configuration = client.Configuration()
    found = google.find_cluster(*PLACE.split("/"))
    google.configure(configuration, found)
    server = ApiServer(client.ApiClient(configuration), name="GKE", namespace=namespace)
    assert server.items(JOBS) == []
    found.credentials.expiry = found.credentials.expiry.replace(year=2020)
    assert server.items(JOBS) == []
    assert gke.asked.count("/token") == 2


@pytest.mark.parametrize(
    ("place", "kind", "words"),
    [
        ("p/europe-west4/other", NotFound, "A zonal cluster's location is its zone"),
        (PLACE, NotAllowed, "roles/container.developer"),
        (PLACE, NoCluster, "--enable-dns-access"),
        (PLACE, NotLoggedIn, "gcloud auth application-default login"),
        (PLACE, Unreachable, "the GKE API does not answer"),
    ],
    ids=["absent", "forbidden", "no-endpoint", "no-credentials", "no-answer"],
)
def test_gke_refuses(
    place: str, kind: type[ClusterProblem], words: str, gke: GkeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind is NotAllowed:
        gke.refusal = (403, 'Required "container.clusters.get" permission(s).')
    if kind is NoCluster:
        gke.clusters[NAME] = {"name": "team", "status": "PROVISIONING"}
    if kind is NotLoggedIn:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere.json")
    if kind is Unreachable:
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER", "http://127.0.0.1:9/")
    with pytest.raises(kind) as refused:
        connect(Cluster(gke=place))
    assert words in str(refused.value)


def test_from_inside_a_pod(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The files that the kubelet mounts are in another folder here; everything else is as in a pod."""
    from kubernetes.config import incluster_config

    from mptraining.cluster import connection

    rules = [{"apiGroups": ["mptraining.dev"], "resources": ["mptrainingjobs"], "verbs": ["list"]}]
    files = {
        "token": control_plane.service_account(namespace, "notebook", rules=rules),
        "ca.crt": authority(control_plane).decode(),
        "namespace": namespace,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    host, port = control_plane.server.removeprefix("https://").split(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setattr(connection, "_OWN_NAMESPACE", tmp_path / "namespace")
    for cluster in (Cluster(), Cluster(in_cluster=True)):
        server = connect(cluster)
        assert (server.name, server.namespace) == ("this pod's cluster", namespace)
        assert server.items(JOBS) == []


def test_an_exec_plugin_of_a_kubeconfig_logs_in(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    """As gke-gcloud-auth-plugin and aws do: a program prints the token."""
    import json
    import sys

    import yaml

    path = control_plane.kubeconfig("plugin", "none", namespace=namespace)
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": control_plane.rest.token},
    }
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", f"print({json.dumps(json.dumps(credential))})"],
        "interactiveMode": "Never",
    }
    document["users"] = [{"name": "testbed", "user": {"exec": plugin}}]
    document["contexts"].append({"name": "other", "context": {**document["contexts"][0]["context"], "namespace": "x"}})
    path.write_text(yaml.safe_dump(document))
    assert connect(Cluster(kubeconfig=str(path))).items(JOBS) == []
    assert connect(Cluster(kubeconfig=str(path), context="other")).namespace == "x"

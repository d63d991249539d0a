"""Refusals by the real API server: each message says what the user can do next."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.testbed import ControlPlane, Options, Refused
from tests.testbed.kubernetes.access import may, wait_until, wait_until_allowed
from tests.testbed.kubernetes.installation import install

Refusal = Callable[..., str]
VERBS = ("submit", "list", "logs", "cancel")


@pytest.fixture
def refused(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch, mptj: Any, use: Any
) -> Refusal:
    """Runs a command that exits with `code`; returns its one line of standard error. As admin unless a kubeconfig is
    given.
    """

    def call(*arguments: str, code: int = 2, kubeconfig: Path | None = None) -> str:
        use(control_plane, namespace)
        if kubeconfig is not None:
            monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        ended = mptj(*arguments)
        err = str(ended.stderr)
        assert ended.returncode == code, err
        messages = [line for line in err.splitlines() if line.startswith("mptj: ")]
        assert len(messages) == (code != 0), err
        assert "Traceback" not in err
        return messages[0] if messages else err

    return call


def job_file(folder: Path, document: Callable[..., Any], name: str = "flowers", **spec: Any) -> str:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document(name, **spec)))
    return str(path)


@pytest.fixture
def document() -> Callable[..., dict[str, Any]]:
    def make(name: str, **spec: Any) -> dict[str, Any]:
        whole = {
            "accelerator": {"type": "cpu"},
            "program": {"application": {"name": "mlp", "classes": 3}},
            "data": {"train": ["gs://b/train-*"]},
            "training": {"epochs": 1},
        } | spec
        metadata = {"name": name}
        return {"apiVersion": "mptraining.dev/v1alpha1", "kind": "MPTrainingJob", "metadata": metadata, "spec": whole}

    return make


def test_no_crd(refused: Refusal, document: Any, tmp_path: Path, control_plane_servers: None) -> None:
    with ControlPlane(tmp_path / "bare", Options(crd=False, controller_manager=False)) as bare:
        kubeconfig = bare.kubeconfig("bare", bare.rest.token)
        for arguments in (("list",), ("submit", job_file(tmp_path, document)), ("status", "flowers")):
            said = refused(*arguments, kubeconfig=kubeconfig)
            assert "testbed: this cluster does not know MPTrainingJob: mptraining is not installed there" in said
            assert "installs it once, from a copy of the project: helm install mptraining charts/mptraining" in said


def test_no_permission_names_the_role(
    refused: Refusal, control_plane: ControlPlane, namespace: str, document: Any, tmp_path: Path
) -> None:
    token = control_plane.service_account(namespace, "ada")
    kubeconfig = control_plane.kubeconfig("ada", token, namespace=namespace)
    said = refused("list", "-A", kubeconfig=kubeconfig)
    assert "may not list mptrainingjobs in all namespaces" in said
    assert ": kubectl create clusterrolebinding " in said
    cases = {("list",): ("list", "view"), ("submit", job_file(tmp_path, document)): ("create", "edit")}
    for arguments, (verb, role) in cases.items():
        said = refused(*arguments, kubeconfig=kubeconfig)
        assert f"system:serviceaccount:{namespace}:ada may not {verb} mptrainingjobs in namespace" in said
        command = said.partition(": kubectl ")[2]
        assert command.startswith("create rolebinding ")
        assert f"--clusterrole={role} --serviceaccount={namespace}:ada --namespace={namespace}" in command
        # The message contains a command that works once the roles of install.yaml exist.
        install(control_plane)
        control_plane.kubectl(*command.split())
        user = f"system:serviceaccount:{namespace}:ada"
        asked = may(user, verb, "mptraining.dev", "mptrainingjobs", namespace)
        # A controller aggregates the roles, and the API server's caches follow later.
        wait_until_allowed(control_plane.rest, asked)
        refused(*arguments, code=0, kubeconfig=kubeconfig)


def test_credentials_that_are_not_accepted(refused: Refusal, control_plane: ControlPlane) -> None:
    said = refused("list", kubeconfig=control_plane.kubeconfig("nobody", "no-such-token"))
    assert "does not accept these credentials. Log in again" in said
    path = control_plane.kubeconfig("anonymous", "")
    assert "does not accept these credentials. Log in again" in refused("list", kubeconfig=path)


@pytest.mark.parametrize("verb", VERBS)
def test_cluster_unreachable(
    verb: str, refused: Refusal, control_plane: ControlPlane, document: Any, tmp_path: Path
) -> None:
    """The address refuses connections; exit code 75 means that the same command may succeed later."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        server = f"https://127.0.0.1:{free.getsockname()[1]}"
        kubeconfig = control_plane.kubeconfig("gone", "x", server=server)
        what = {"submit": [job_file(tmp_path, document)], "list": []}.get(verb, ["flowers"])
        said = refused(verb, *what, code=75, kubeconfig=kubeconfig)
    assert "mptj: testbed: the API server does not answer: " in said
    assert "Connection refused. Is the cluster running" in said


def test_no_accelerator_nodes_says_which_there_are(
    refused: Refusal, control_plane: ControlPlane, document: Any, tmp_path: Path
) -> None:
    """A warning, no refusal: an autoscaler may create the node, and the operator may fall back to CPUs."""
    control_plane.nodes.create(
        "t4", labels={"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}, capacity={"nvidia.com/gpu": "4"}
    )
    try:
        v100 = job_file(tmp_path, document, "lonely", accelerator={"type": "v100"})
        said = refused("submit", v100, code=0)
        assert "advice: no node has v100 now: the cluster has t4 (1 node)." in said
        t4 = job_file(tmp_path, document, "placed", accelerator={"type": "t4"})
        assert "no node has" not in refused("submit", t4, code=0)
    finally:
        control_plane.nodes.remove("t4")


def test_names_that_are_taken_or_unknown(refused: Refusal, document: Any, tmp_path: Path, namespace: str) -> None:
    file = job_file(tmp_path, document, "taken")
    refused("submit", file, code=0)
    said = refused("submit", file)
    assert f"taken: a job of this name exists in namespace '{namespace}'" in said
    assert "delete it with `mptj cancel taken`" in said
    assert "there is no namespace 'nowhere'" in refused("submit", file, "--namespace", "nowhere")
    for verb in ("status", "logs", "wait", "cancel", "suspend", "resume"):
        assert "nobody: no job of this name in namespace" in refused(verb, "nobody")


def test_what_the_namespace_does_not_allow_leaves_nothing_behind(
    refused: Refusal, control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    control_plane.rest.post(path, {"metadata": {"name": "none"}, "spec": {"hard": {"configmaps": "1"}}})
    # The namespace has one already; the quota counts it once the quota controller has run and admission has its result.
    wait_until(lambda: control_plane.rest.get(f"{path}/none").get("status", {}).get("used"), "the quota is counted")
    one = {"metadata": {"name": "one-too-many"}}
    wait_until(lambda: refuses(control_plane, f"/api/v1/namespaces/{namespace}/configmaps", one), "the quota counts")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print('never')\n")
    said = refused("submit", "code/train.py", "--name", "much")
    assert "refused to create configmaps in namespace" in said
    assert "exceeded quota: none" in said
    assert "much: no job of this name" in refused("status", "much")


def refuses(control_plane: ControlPlane, path: str, body: dict[str, Any]) -> bool:
    """Report whether the API server refuses it, as a dry run."""
    try:
        control_plane.rest.post(path, body, {"dryRun": "All"})
    except Refused:
        return True
    return False


def test_no_cluster_is_named(refused: Refusal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    said = refused("list", kubeconfig=tmp_path / "absent")
    assert "no cluster named: no KUBECONFIG, no ~/.kube/config, not in a pod. Give a kubeconfig" in said
    (tmp_path / "broken").write_text("clusters: [")
    assert "broken: cannot be used: " in refused("list", kubeconfig=tmp_path / "broken")
    assert "--context: 'prod' is not in " in refused("list", "--context", "prod")
    assert os.environ["HOME"] == str(tmp_path)


def test_logs_may_be_forbidden_alone(
    refused: Refusal, control_plane: ControlPlane, namespace: str, document: Any, tmp_path: Path
) -> None:
    """For users who may read pods but not their logs: the log request is refused on another path than the others."""
    rules = [
        {"apiGroups": ["mptraining.dev"], "resources": ["mptrainingjobs"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    ]
    token = control_plane.service_account(namespace, "deaf", rules=rules)
    refused("submit", job_file(tmp_path, document, "mute"), code=0)
    uid = control_plane.rest.get(f"/apis/mptraining.dev/v1alpha1/namespaces/{namespace}/mptrainingjobs/mute")
    labels = {"mptraining.dev/job-uid": uid["metadata"]["uid"], "mptraining.dev/attempt": "1"}
    pods = f"/api/v1/namespaces/{namespace}/pods"
    spec = {"containers": [{"name": "trainer", "image": "x"}], "nodeName": "nowhere"}
    control_plane.rest.post(pods, {"metadata": {"name": "mute-1-0-x", "labels": labels}, "spec": spec})
    state = {"name": "trainer", "image": "x", "imageID": "", "ready": True, "restartCount": 0, "state": {"running": {}}}
    control_plane.rest.patch(
        f"{pods}/mute-1-0-x/status", {"status": {"phase": "Running", "containerStatuses": [state]}}
    )
    said = refused("logs", "mute", kubeconfig=control_plane.kubeconfig("deaf", token, namespace=namespace))
    assert f"system:serviceaccount:{namespace}:deaf may not get pods/log in namespace" in said
    assert "--clusterrole=view" in said

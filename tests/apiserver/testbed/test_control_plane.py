"""The testbed behaves as documented: other tests rely on it to judge the operator."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from hack.cluster.binaries import TESTED
from tests.testbed import (
    ControlPlane,
    Disrupted,
    Exit,
    Lost,
    NotStarted,
    Options,
    OutOfMemory,
    Pod,
    Refused,
    Request,
    Run,
    Script,
    Server,
    Unscheduled,
    Waiting,
    missing,
)
from tests.testbed.binaries import VERSION_VARIABLE, other
from tests.testbed.kubernetes.access import wait_until
from tests.testbed.nodes.kwok import start_kwok

ROOT = Path(__file__).parents[3]
GPU_NODE: dict[str, Any] = {"labels": {"accelerator": "t4"}, "capacity": {"nvidia.com/gpu": "4"}}


def job(name: str, **spec: Any) -> dict[str, Any]:
    """Return an Indexed Job of two pods that request a GPU each."""
    container = {"name": "trainer", "image": "none", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    pod = {"restartPolicy": "Never", "nodeSelector": {"accelerator": "t4"}, "containers": [container]}
    indexed = {
        "completionMode": "Indexed",
        "completions": 2,
        "parallelism": 2,
        "backoffLimitPerIndex": 0,
        "maxFailedIndexes": 0,
    }
    return {"metadata": {"name": name}, "spec": indexed | spec | {"template": {"spec": pod}}}


@pytest.fixture(scope="module", autouse=True)
def gpu_node(control_plane: ControlPlane) -> None:
    control_plane.nodes.create("testbed-t4", **GPU_NODE)


def ended(control_plane: ControlPlane, namespace: str, script: Script) -> tuple[dict[str, Any], list[Pod]]:
    """Return the Job's status and pods when the Job has ended."""
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    with control_plane.kubelet(script, namespace=namespace):
        control_plane.rest.post(path, job("gang"))

        def over() -> bool:
            conditions = control_plane.rest.get(f"{path}/gang")["status"].get("conditions", ())
            return any(each["type"] in ("Complete", "Failed") for each in conditions)

        wait_until(over, "the Job's end")
    return control_plane.rest.get(f"{path}/gang")["status"], control_plane.pods.of_job(namespace, "gang")


def terminated(pod: Pod) -> dict[str, Any]:
    state: dict[str, Any] = pod.whole["status"]["containerStatuses"][0]["state"]["terminated"]
    return state


class TestAccess:
    def test_the_official_client_is_the_admin(self, control_plane: ControlPlane, namespace: str) -> None:
        with control_plane.client() as connection:
            names = [each.metadata.name for each in client.CoreV1Api(connection).list_namespace().items]
        assert namespace in names

    def test_a_restricted_user_may_do_what_its_rules_say(self, control_plane: ControlPlane, namespace: str) -> None:
        rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
        token = control_plane.service_account(namespace, "reader", rules=rules)
        kubeconfig = control_plane.kubeconfig("reader", token, namespace=namespace)
        assert control_plane.kubectl("get", "pods", kubeconfig=kubeconfig).returncode == 0
        refused = control_plane.kubectl("get", "secrets", kubeconfig=kubeconfig, check=False)
        assert "forbidden" in refused.stderr

    def test_a_token_is_reviewed_for_its_audience_only(self, control_plane: ControlPlane, namespace: str) -> None:
        token = control_plane.token(namespace, "default", audiences=["mptraining"])

        def reviewed(audience: str) -> dict[str, Any]:
            body = {"spec": {"token": token, "audiences": [audience]}}
            status: dict[str, Any] = control_plane.rest.post("/apis/authentication.k8s.io/v1/tokenreviews", body)[
                "status"
            ]
            return status

        assert reviewed("mptraining")["user"]["username"] == f"system:serviceaccount:{namespace}:default"
        assert "authenticated" not in reviewed("somebody-else")

    def test_a_pod_that_breaks_the_security_level_is_refused(self, control_plane: ControlPlane) -> None:
        strict = control_plane.namespace("strict", labels={"pod-security.kubernetes.io/enforce": "restricted"})
        pod = {"metadata": {"name": "root"}, "spec": {"containers": [{"name": "c", "image": "none"}]}}
        with pytest.raises(Refused, match="violates PodSecurity"):
            control_plane.rest.post(f"/api/v1/namespaces/{strict}/pods", pod)

    def test_a_quota_is_enforced(self, control_plane: ControlPlane, namespace: str) -> None:
        path = f"/api/v1/namespaces/{namespace}/resourcequotas"
        control_plane.rest.post(path, {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}})
        wait_until(lambda: "hard" in control_plane.rest.get(f"{path}/none")["status"], "the quota's first count")
        pod = {"metadata": {"name": "one"}, "spec": {"containers": [{"name": "c", "image": "none"}]}}
        pods = f"/api/v1/namespaces/{namespace}/pods"

        def refused() -> bool:
            """Admission sees the quota a moment after it was written; a dry run leaves no pod."""
            try:
                control_plane.rest.post(pods, pod, {"dryRun": "All"})
            except Refused:
                return True
            return False

        wait_until(refused, "admission knows the quota")
        with pytest.raises(Refused, match="exceeded quota"):
            control_plane.rest.post(pods, pod)


class TestKubelet:
    def test_pods_that_succeed_complete_their_job(self, control_plane: ControlPlane, namespace: str) -> None:
        status, pods = ended(control_plane, namespace, lambda _: Exit(0, message="the last event"))
        assert status["succeeded"] == 2
        assert [pod.phase for pod in pods] == ["Succeeded", "Succeeded"]
        assert [pod.node for pod in pods] == ["testbed-t4", "testbed-t4"]
        assert terminated(pods[0])["message"] == "the last event"

    def test_one_that_fails_ends_its_gang(self, control_plane: ControlPlane, namespace: str) -> None:
        status, pods = ended(control_plane, namespace, lambda pod: Exit(3) if pod.index == 1 else Run(stop_code=75))
        # FailureTarget comes first since Kubernetes 1.31.
        assert {each["type"] for each in status["conditions"]} - {"FailureTarget"} == {"Failed"}
        # The job controller deletes the other one, which exits as the trainer does.
        assert [terminated(pod)["exitCode"] for pod in pods if pod.index == 1] == [3]

    def test_out_of_memory_looks_like_a_kernel_s_kill(self, control_plane: ControlPlane, namespace: str) -> None:
        # One pod alone: of two, the controller may delete the second before it has ended by itself.
        _, pods = ended(control_plane, namespace, lambda pod: OutOfMemory() if pod.index == 0 else Run())
        assert (terminated(pods[0])["exitCode"], terminated(pods[0])["reason"]) == (137, "OOMKilled")

    def test_a_disruption_carries_its_condition(self, control_plane: ControlPlane, namespace: str) -> None:
        script = lambda pod: Disrupted(reason="PreemptionByScheduler") if pod.index == 0 else Run()  # noqa: E731
        _, pods = ended(control_plane, namespace, script)
        conditions = {each["type"]: each for each in pods[0].whole["status"]["conditions"]}
        assert conditions["DisruptionTarget"]["reason"] == "PreemptionByScheduler"

    @pytest.mark.parametrize("behaviour", [Waiting(), Unscheduled()], ids=["image", "no node"])
    def test_a_pod_that_cannot_start_stays_pending(
        self, control_plane: ControlPlane, namespace: str, behaviour: Waiting | Unscheduled
    ) -> None:
        with control_plane.kubelet(lambda _: behaviour, namespace=namespace):
            control_plane.rest.post(f"/apis/batch/v1/namespaces/{namespace}/jobs", job("stuck"))
            control_plane.pods.wait_for(namespace, "stuck", 2)

            def shows_the_reason() -> bool:
                return all(
                    behaviour.message in str(pod.whole["status"]) for pod in control_plane.pods.select(namespace)
                )

            wait_until(shows_the_reason, "the reason")
            assert {pod.phase for pod in control_plane.pods.select(namespace)} == {"Pending"}

    def test_a_pod_on_a_lost_node_stays_until_the_node_is_back(
        self, control_plane: ControlPlane, namespace: str
    ) -> None:
        path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        with control_plane.kubelet(namespace=namespace) as kubelet:
            control_plane.rest.post(path, job("gone"))
            pods = control_plane.pods.wait_for(namespace, "gone", 2)
            wait_until(lambda: _phases(control_plane, namespace) == ["Running", "Running"], "two running pods")
            kubelet.tell(pods[0], Lost())
            control_plane.rest.delete(f"{path}/gone", {"propagationPolicy": "Background"})
            # The controller deletes them one after the other.
            wait_until(
                lambda: [each.terminating for each in control_plane.pods.select(namespace)] == [True], "one pod less"
            )
            (left,) = control_plane.pods.select(namespace)
            assert left.uid == pods[0].uid
            kubelet.tell(left, Run())
            wait_until(lambda: not control_plane.pods.select(namespace), "no pod left")

    def test_an_evicted_pod_leaves(self, control_plane: ControlPlane, namespace: str) -> None:
        with control_plane.kubelet(namespace=namespace), control_plane.client() as connection:
            control_plane.rest.post(f"/apis/batch/v1/namespaces/{namespace}/jobs", job("evicted"))
            first, _ = control_plane.pods.wait_for(namespace, "evicted", 2)
            wait_until(lambda: _phases(control_plane, namespace) == ["Running", "Running"], "two running pods")
            eviction = client.V1Eviction(metadata=client.V1ObjectMeta(name=first.name, namespace=namespace))
            client.CoreV1Api(connection).create_namespaced_pod_eviction(first.name, namespace, eviction)
            wait_until(lambda: first.uid not in {each.uid for each in control_plane.pods.select(namespace)}, "gone")


def _phases(control_plane: ControlPlane, namespace: str) -> list[str]:
    return [pod.phase for pod in control_plane.pods.select(namespace)]


class TestKwok:
    def test_pods_on_its_nodes_run_and_succeed(self, control_plane: ControlPlane, namespace: str) -> None:
        if absent := missing(["kwok"]):
            pytest.skip(absent)
        path = f"/api/v1/namespaces/{namespace}/pods"
        control_plane.nodes.create("testbed-kwok", kwok=True)
        with start_kwok(control_plane, complete=True):
            for number in range(20):
                spec = {"nodeName": "testbed-kwok", "containers": [{"name": "c", "image": "none"}]}
                control_plane.rest.post(path, {"metadata": {"name": f"pod-{number}"}, "spec": spec})
            wait_until(lambda: set(_phases(control_plane, namespace)) == {"Succeeded"}, "20 pods' success")


class TestServers:
    def test_they_are_of_the_kubernetes_that_is_asked_for(self, control_plane: ControlPlane) -> None:
        assert control_plane.rest.get("/version")["gitVersion"].startswith(f"v{other() or TESTED}")

    def test_what_is_missing_of_an_older_one_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(VERSION_VARIABLE, "1.2")
        said = missing(["kube-apiserver"])
        assert said == (
            "no kube-apiserver in build/kubernetes-1.2: run `python hack/cluster/binaries.py --kubernetes 1.2`"
        )

    def test_a_crashing_server_shows_its_log(self, tmp_path: Path) -> None:
        command = [sys.executable, "-c", "import sys; print('no such flag'); sys.exit(7)"]
        with (
            Server(command, log=tmp_path / "broken.log") as server,
            pytest.raises(NotStarted, match=r"broken ended with 7\nno such flag"),
        ):
            server.wait_until(lambda: False, seconds=60)

    def test_an_outage_keeps_the_data(self, tmp_path: Path) -> None:
        with ControlPlane(tmp_path, Options(audit=True, controller_manager=False)) as own:
            own.namespace("kept")
            made = _wait_for_request(own, "create", "kept")
            assert (made.user, made.agent, made.resource, made.code) == ("admin", "testbed", "namespaces", 201)
            assert 0 < made.ended - made.began < 60
            own.stop_api_server()
            with pytest.raises(OSError, match="refused"):
                own.rest.get("/version")
            own.start_api_server()
            assert own.rest.get("/api/v1/namespaces/kept")["status"]["phase"] == "Active"

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells children of their parent's end")
    def test_no_server_outlives_a_killed_test(self, tmp_path: Path) -> None:
        program = (
            "import sys; from pathlib import Path; from tests.testbed import Server\n"
            f"server = Server(['sleep', '600'], log=Path({str(tmp_path / 'sleep.log')!r}))\n"
            "print(server.pid, flush=True); sys.stdin.read()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as parent:
            assert parent.stdout is not None
            child = int(parent.stdout.readline())
            # Until setpriv has requested the signal and executed the program, no signal arrives.
            wait_until(lambda: Path(f"/proc/{child}/comm").read_text().strip() == "sleep", "sleep runs")
            parent.send_signal(signal.SIGKILL)
            parent.wait()
        deadline = time.monotonic() + 60
        while _alive(child) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not _alive(child)


def _wait_for_request(control_plane: ControlPlane, verb: str, name: str) -> Request:
    """Wait for the request in the audit log, which may be written after the answer is sent."""

    def found() -> list[Request]:
        return [each for each in control_plane.requests() if (each.verb, each.name) == (verb, name)]

    wait_until(lambda: len(found()) == 1, f"{verb} {name} in the audit log")
    return found()[0]


def _alive(pid: int) -> bool:
    """Report whether it runs; a zombie that its parent has not waited for yet does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False

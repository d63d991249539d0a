"""The pod that reads a volume: its body, the machine it needs, and why it does not start."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining.cluster.errors import ClusterProblem, NotFound
from mptraining.cluster.reader_pod import (
    START_SECONDS,
    Mounted,
    node_of_claim,
    pod_body,
    reader_pod,
    start_problems,
    volume_of,
)
from mptraining_api.kubernetes_api import PODS
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import MPTrainingJob
from mptraining_operator.jobs.resources.environment import PodSettings
from mptraining_operator.jobs.resources.indexed_job import indexed_job
from mptraining_operator.jobs.resources.job_objects import Owner

CLAIM = {"name": "runs", "persistentVolumeClaim": {"claimName": "team-runs"}}


def template(output: str = "/runs/digits", **pod_template: Any) -> dict[str, Any]:
    """The pod template that the operator makes of a job on one T4."""
    pods = {"volumes": [CLAIM], "volumeMounts": [{"name": "runs", "mountPath": "/runs"}], **pod_template}
    spec = {
        "accelerator": {"type": "t4", "countPerWorker": 1}, "program": {"application": {"name": "mlp"}},
        "data": {"train": ["gs://b/x.tfrecord"], "label": "label"}, "output": {"uri": output},
        "podTemplate": {"image": "trainer:1", **pods},
    }  # fmt: skip
    job = MPTrainingJob.parse({"metadata": {"name": "digits"}, "spec": spec})
    owner = Owner("default", "digits", "uid-of-digits", "2026-01-01T00:00:00Z")
    made = indexed_job(owner, resolve(job, ClusterSettings()), attempt=1, settings=PodSettings())
    found: dict[str, Any] = made["spec"]["template"]
    return found


JOB = {"metadata": {"name": "digits", "uid": "uid-of-digits"}, "spec": {}}


def body(node: str | None = None, *, job: dict[str, Any] = JOB, **pod_template: Any) -> dict[str, Any]:
    made = template(**pod_template)
    mounted = volume_of("/runs/digits", made)
    assert mounted is not None
    return pod_body("digits-fetch-x", job, made, mounted, node)


@pytest.mark.parametrize(
    ("output", "claim", "persistent"),
    [
        ("/runs/digits", "team-runs", True),
        ("file:///runs/digits", "team-runs", True),
        ("runs/digits", None, False),
        ("/tmp/digits", None, False),
    ],
)
def test_the_volume_of_a_run_folder(output: str, claim: str | None, persistent: bool) -> None:
    mounted = volume_of(output, template(output))
    assert (mounted.claim, mounted.persistent) == (claim, persistent)
    assert volume_of("/srv/digits", template()) is None, "a path on the root file system is on no volume"


def test_the_innermost_mount_holds_the_folder() -> None:
    mounts = [{"name": "runs", "mountPath": "/runs"}, {"name": "scratch", "mountPath": "/runs/digits/"}]
    pods = template(volumes=[CLAIM, {"name": "scratch", "emptyDir": {}}], volumeMounts=mounts)
    mounted = volume_of("/runs/digits/a", pods)
    assert (mounted.volume["name"], mounted.persistent) == ("scratch", False)


def test_it_mounts_that_volume_alone_read_only_and_is_owned_by_the_job() -> None:
    job = {**JOB, "spec": {"podTemplate": {"nodeSelector": {"zone": "a"}}}}
    pod = body(job=job, nodeSelector={"zone": "a"}, env=[{"name": "PASSWORD", "value": "secret"}])
    (container,) = pod["spec"]["containers"]
    assert container["volumeMounts"] == [
        {"name": "runs", "mountPath": "/runs", "readOnly": True},
        {"name": "reader-tmp", "mountPath": "/tmp"},
    ]
    assert pod["spec"]["volumes"] == [CLAIM, {"name": "reader-tmp", "emptyDir": {}}]
    assert "env" not in container
    assert container["image"] == "trainer:1"
    assert container["command"][-2:] == ["/runs/digits", "21600"]
    assert pod["metadata"]["ownerReferences"][0]["uid"] == "uid-of-digits"
    assert "mptraining.dev/job" not in pod["metadata"]["labels"], "the operator would wait for the end of this pod"
    assert pod["spec"]["nodeSelector"] == {"zone": "a"}, "no accelerator"
    assert "nvidia.com/gpu" not in container["resources"]["limits"]


def test_it_goes_to_the_machine_where_a_claim_for_one_machine_is_mounted() -> None:
    claim = {"metadata": {"name": "team-runs"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    other = {"spec": {"nodeName": "n1", "volumes": [{"emptyDir": {}}]}, "status": {"phase": "Running"}}
    ended = {"spec": {"nodeName": "n2", "volumes": [CLAIM]}, "status": {"phase": "Succeeded"}}
    holder = {"spec": {"nodeName": "n3", "volumes": [CLAIM]}, "status": {"phase": "Running"}}
    assert node_of_claim(claim, [other, ended]) is None
    assert node_of_claim(claim, [other, ended, holder]) == "n3"
    shared = {**claim, "spec": {"accessModes": ["ReadWriteOnce", "ReadWriteMany"]}}
    assert node_of_claim(shared, [holder]) is None
    spec = body("n3")["spec"]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n3"]}]}]
    assert spec["tolerations"] == [{"operator": "Exists"}], "the machine may have an accelerator's taint"


def waiting(reason: str, message: str) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"status": {"phase": "Pending", "containerStatuses": [{"name": "trainer", "state": state}]}}


def unscheduled(message: str) -> dict[str, Any]:
    return {"status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]}}


@pytest.mark.parametrize(
    ("pod", "events", "problem"),
    [
        (waiting("ContainerCreating", ""), [], None),
        (unscheduled("0/3 nodes are available: 3 Insufficient cpu"), [], None),
        (waiting("ImagePullBackOff", "no such image"), [], "its image cannot be pulled: no such image"),
        (waiting("CreateContainerConfigError", "no uid"), [], "CreateContainerConfigError: no uid"),
        (unscheduled('persistentvolumeclaim "team-runs" not found'), [],
         "the claim team-runs does not exist any more, and the run folder with it"),
        (waiting("ContainerCreating", ""), [{"reason": "FailedAttachVolume",
         "message": "Multi-Attach error for volume: already used by pod(s) x"}],
         "the claim team-runs is ReadWriteOnce and mounted on another machine: Multi-Attach error"),
        (waiting("ContainerCreating", ""), [{"reason": "FailedMount", "message": "no such export"}],
         "its volume cannot be mounted: no such export"),
        (waiting("ContainerCreating", ""), [{"reason": "FailedScheduling", "message": "later"}], None),
        ({"status": {"phase": "Failed", "message": "Pod was evicted"}}, [], "it ended: Pod was evicted"),
    ],
)  # fmt: skip
def test_why_it_does_not_start(pod: dict[str, Any], events: list[dict[str, Any]], problem: str | None) -> None:
    found = next(start_problems(pod, events, "team-runs"), None)
    assert (found is None) == (problem is None)
    assert found is None or found.startswith(problem or "")


class Server:
    """An API server whose claim exists and whose pod is in the given states, the last one for ever."""

    def __init__(self, *states: dict[str, Any], claim: bool = True) -> None:
        self.states = list(states)
        self.claim = claim
        self.pods: list[str] = []

    def create(self, resource: Any, body: dict[str, Any]) -> dict[str, Any]:
        self.pods.append(body["metadata"]["name"])
        return {"metadata": {"name": self.pods[-1]}}

    def get(self, resource: Any, name: str) -> dict[str, Any]:
        if resource is PODS:
            state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
            return {"metadata": {"name": name, "uid": "u"}, **state}
        if not self.claim:
            raise NotFound(name, "no persistentvolumeclaims of this name")
        return {"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteMany"]}}

    def items(self, resource: Any, **query: str) -> list[dict[str, Any]]:
        return []

    def delete(self, resource: Any, name: str, *, grace_seconds: int) -> None:
        assert grace_seconds == 0
        if name not in self.pods:
            raise NotFound(name, "no pods of this name")
        self.pods.remove(name)


RUNNING = {"status": {"containerStatuses": [{"name": "trainer", "state": {"running": {}}}]}}


def reader(server: Server) -> Any:
    now = [0.0]

    def wait(seconds: float) -> None:
        now[0] += seconds

    made = template()
    mounted = volume_of("/runs/digits", made)
    assert isinstance(mounted, Mounted)
    return reader_pod(server, "digits-fetch-x", JOB, made, mounted, clock=lambda: now[0], wait=wait)  # type: ignore[arg-type]


class Interrupted(Server):
    """An interrupt comes before the answer to the pod's creation."""

    def create(self, resource: Any, body: dict[str, Any]) -> dict[str, Any]:
        super().create(resource, body)
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        (Server(waiting("ContainerCreating", ""), RUNNING), None),
        (Interrupted(RUNNING), None),
        (Server(unscheduled("0/3 nodes are available")),
         rf"cannot start: it has not started within {START_SECONDS:g} s\. 0/3 nodes are available"),
    ],
    ids=["used", "interrupted", "late"],
)  # fmt: skip
def test_it_is_deleted_however_it_ends(server: Server, problem: str | None) -> None:
    def use_it() -> None:
        with reader(server):
            assert server.pods == ["digits-fetch-x"]
            raise KeyboardInterrupt

    with pytest.raises(ClusterProblem if problem else KeyboardInterrupt, match=problem):
        use_it()
    assert server.pods == []


def test_a_claim_that_is_gone_is_named_before_a_pod_is_created() -> None:
    server = Server(RUNNING, claim=False)
    gone = r"team-runs: the claim with the run folder /runs/digits does not exist any more, and the folder with it"
    with pytest.raises(ClusterProblem, match=gone):
        reader(server).__enter__()
    assert server.pods == []

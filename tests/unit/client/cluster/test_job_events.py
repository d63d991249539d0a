"""The requests for the events of a job, and for the machines of one that waits."""

from __future__ import annotations

from typing import Any, cast

from mptraining.cluster.api import ApiServer
from mptraining.cluster.job_events import MOST_PODS, job_events
from mptraining.cluster.job_view import view
from mptraining.cluster.submission import waiting_job_warning
from mptraining_api.kubernetes_api import BATCH_JOBS, EVENTS, NODES, PODS, Resource
from mptraining_api.status import COMPLETION_INDEX, JOB_UID


def child(name: str, job: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"{name}-uid", "labels": {JOB_UID: job, **labels}}}


def event(kind: str, name: str, time: int) -> dict[str, Any]:
    about = {"kind": kind, "name": name, "uid": f"{name}-uid"}
    return {"involvedObject": about, "reason": "Seen", "message": "a  b", "metadata": {}, "lastTimestamp": str(time)}


class Server:
    """Selects by labels and fields as the API server does."""

    def __init__(self, objects: dict[Resource, list[dict[str, Any]]]) -> None:
        self.objects = objects
        self.requests: list[tuple[Resource, dict[str, Any]]] = []

    def items(self, resource: Resource, **query: Any) -> list[dict[str, Any]]:
        self.requests.append((resource, query))
        if resource is NODES:
            return self.objects[NODES]
        if resource is EVENTS:
            uid = query["fieldSelector"].removeprefix("involvedObject.uid=")
            return [each for each in self.objects[EVENTS] if each["involvedObject"]["uid"] == uid]
        uid = query["labelSelector"].removeprefix(f"{JOB_UID}=")
        return [each for each in self.objects[resource] if each["metadata"]["labels"][JOB_UID] == uid]


def test_only_the_events_of_the_job_and_its_children_are_asked_for() -> None:
    """The Indexed Job of the job `flowers-1-0` has the name of a pod of `flowers`."""
    first, other = "flowers-uid", "flowers-1-0-uid"
    objects = {
        BATCH_JOBS: [child("flowers-1", first), child("flowers-1-0-1", other)],
        PODS: [
            child("flowers-1-0-x", first, **{COMPLETION_INDEX: "0"}),
            child("flowers-1-0-1-0-x", other),
        ],
        EVENTS: [
            event("Pod", "flowers-1-0-x", 3),
            event("Job", "flowers-1", 2),
            event("Job", "flowers-1-0-1", 2),
            event("Pod", "flowers-1-0-1-0-x", 2),
            event("MPTrainingJob", "flowers", 1),
        ],
    }
    found = job_events(cast(ApiServer, Server(objects)), first)
    assert [each.about for each in found] == ["MPTrainingJob flowers", "Job flowers-1", "Pod flowers-1-0-x"]
    assert str(found[0]) == "1  MPTrainingJob flowers  Seen: a b"


def test_of_many_pods_those_that_do_not_run_are_asked_for() -> None:
    running = {"phase": "Running", "containerStatuses": [{"name": "trainer", "state": {"running": {}}}]}
    pods = [child(f"flowers-1-{index}-x", "flowers-uid", **{COMPLETION_INDEX: str(index)}) for index in range(99)]
    for pod in pods[:98]:
        pod["status"] = running
    server = Server({BATCH_JOBS: [], PODS: pods, EVENTS: [event("Pod", "flowers-1-98-x", 1)]})
    assert [each.about for each in job_events(cast(ApiServer, server), "flowers-uid")] == ["Pod flowers-1-98-x"]
    assert len(server.requests) == 3 + MOST_PODS


def test_the_machines_are_known_by_their_labels_alone() -> None:
    node = {"metadata": {"name": "n", "labels": {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}}}
    server = Server({NODES: [node]})
    metadata = {"name": "flowers", "uid": "u"}
    for type, warning in (("t4", None), ("v100", "no node has v100 now: the cluster has t4 (1 node).")):
        seen = view({"metadata": metadata, "spec": {"accelerator": {"type": type}}, "status": {"phase": "Pending"}})
        found = waiting_job_warning(cast(ApiServer, server), seen)
        assert (found is None) if warning is None else str(found).startswith(warning)
    assert [query for _, query in server.requests] == 2 * [{"metadata_only": True}]

"""Jobs of a cluster on the board: rows, pages, and the run folder of a job that is reachable from here."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mptraining.board import cluster_jobs, sources
from mptraining.board.cluster_jobs import ClusterJobs
from mptraining.board.sources import folder_source
from mptraining.board.state import Board
from mptraining.board.static_page import data
from mptraining.cluster.api import ApiServer
from mptraining.cluster.errors import NotAllowed, NotFound, Unreachable
from mptraining.runs.reader import run_id
from mptraining_api.events import Event
from mptraining_api.kubernetes_api import Raw, Resource
from tests.fakes import Clock
from tests.testbed.board_runs import write_run
from tests.testbed.sweep_files import view_of

TIME = "2026-01-01T00:00:00Z"
NOW = 1767225600.0


class Cluster(ApiServer):
    """An API server that returns given objects by the plural of their kind; the names of `forbidden` are refused."""

    def __init__(self, objects: dict[str, list[Raw]], namespace: str = "team") -> None:
        super().__init__(None, name="test-cluster", namespace=namespace)
        self.objects = objects
        self.forbidden: set[str] = set()
        self.away = False

    def in_namespace(self, namespace: str) -> Cluster:
        other = Cluster(self.objects, namespace)
        other.forbidden, other.away = self.forbidden, self.away
        return other

    def get(self, resource: Resource, name: str) -> Raw:
        for item in self.items(resource):
            if item["metadata"]["name"] == name:
                return item
        raise NotFound(name, "not found")

    def collection(self, resource: Resource, *, everywhere: bool = False, **_: str) -> tuple[list[Raw], str]:
        return self.items(resource, everywhere=everywhere), "10"

    def items(
        self, resource: Resource, *, everywhere: bool = False, metadata_only: bool = False, **query: str
    ) -> list[Raw]:
        if self.away:
            raise Unreachable("test-cluster", "does not answer")
        if resource.plural in self.forbidden:
            raise NotAllowed(resource.plural, "you may not list these")
        return [
            each
            for each in self.objects.get(resource.plural, [])
            if everywhere or each["metadata"].get("namespace", self.namespace) == self.namespace
        ]


def sweep(name: str, version: int = 1, **spec: Any) -> Raw:
    written = view_of([]).sweep.to_document()
    metadata = {"name": name, "uid": f"uid-{name}", "namespace": "team", "resourceVersion": str(version)}
    return written | {"metadata": metadata, "spec": written["spec"] | spec}


def test_a_sweep_that_cannot_be_read_is_reported_beside_the_jobs_and_the_other_sweeps() -> None:
    source = ClusterJobs(
        Cluster({"mptrainingjobs": [job("digits")], "mptrainingsweeps": [sweep("a", algorithm=7), sweep("b")]}),
        clock=lambda: NOW,
    )
    source.refresh()
    assert [facts.name for facts in source.jobs().values()] == ["digits"]
    assert [shown.view.name for shown in source.sweeps().values()] == ["b"]
    assert source.problem.startswith("a: the sweep cannot be read")


def test_a_user_who_may_not_list_sweeps_sees_the_jobs() -> None:
    cluster = Cluster({"mptrainingjobs": [job("digits")]})
    cluster.forbidden = {"mptrainingsweeps"}
    source = ClusterJobs(cluster, clock=lambda: NOW)
    source.refresh()
    assert (len(source.jobs()), source.problem) == (1, None)


def job(name: str, *, uri: str | None = None, namespace: str = "team", **status: Any) -> Raw:
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "creationTimestamp": TIME}
    spec: Raw = {"accelerator": {"type": "t4"}} | ({"output": {"uri": uri}} if uri else {})
    return {"metadata": metadata, "spec": spec, "status": status}


def condition(type: str, reason: str, message: str) -> Raw:
    return {"type": type, "status": "True", "reason": reason, "message": message, "lastTransitionTime": TIME}


RUNNING = {
    "phase": "Running", "currentAttempt": 2, "startTime": TIME, "replicasInSync": 4,
    "resolved": [{"decision": "precision", "value": "mixed_float16", "reason": "r"},
                 {"decision": "batchSize", "value": "64", "reason": "r"}],
    "conditions": [condition("Running", "Training", "all workers train")],
    "progress": {
        "step": 40, "totalSteps": 100, "percentComplete": 40, "estimatedRemainingSeconds": 60,
        "examplesPerSecond": 512.5, "metrics": [{"name": "loss", "value": "0.5"}, {"name": "bad", "value": "NaN"}],
    },
}  # fmt: skip


def board(cluster: Cluster, folders: Sequence[str] = (), **options: Any) -> Board:
    jobs = ClusterJobs(cluster, clock=lambda: NOW + 3600, **options)
    found = Board([*(folder_source(folder) for folder in folders), jobs], clock=lambda: NOW + 3600)
    found.refresh()
    return found


def test_a_job_without_a_run_folder_shows_what_the_cluster_knows() -> None:
    shown = board(Cluster({"mptrainingjobs": [job("flowers", **RUNNING)]}))
    (row,) = shown.runs()["runs"]
    assert (row["name"], row["folder"], row["state"]) == ("flowers", None, "Running")
    assert row["job"] == {"namespace": "team", "name": "flowers"}
    assert row["reason"] == "Training: all workers train"
    assert row["progress"] == {"step": 40, "totalSteps": 100, "percent": 40, "remainingSeconds": 60}
    values = row["values"]
    expected = {
        "policy": "mixed_float16", "globalBatchSize": 64, "replicas": 4, "restarts": 1, "last:loss": 0.5,
        "phase": "Running",
    }  # fmt: skip
    assert {key: values[key] for key in expected} == expected
    assert values["last:bad"] == "NaN"
    assert values["startTime"] == NOW


def test_a_job_is_the_row_of_its_run_folder(tmp_path: Path) -> None:
    """Also if another source has found the folder; a finished job that is gone keeps its folder's row."""
    write_run(tmp_path / "one", 0, 20, random.Random(0))
    write_run(tmp_path / "two", 1, 20, random.Random(1))
    cluster = Cluster({"mptrainingjobs": [job("flowers", uri=str(tmp_path / "one"), **RUNNING)]})
    for folders in ((), (str(tmp_path),)):
        shown = board(cluster, folders)
        rows = {run["id"]: run for run in shown.runs()["runs"]}
        assert len(rows) == 1 + len(folders)
        row = rows[run_id(str(tmp_path / "one"))]
        assert row["job"] == {"namespace": "team", "name": "flowers"}
        assert row["progress"]["step"] == 20
    cluster.objects["mptrainingjobs"] = []
    shown.refresh()
    rows = {run["id"]: run for run in shown.runs()["runs"]}
    assert rows[run_id(str(tmp_path / "one"))]["job"] is None


def test_the_page_of_a_job_says_why_it_waits() -> None:
    waiting = job("flowers", phase="Pending", conditions=[condition("Running", "Waiting", "for machines")])
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no such node"}
    pulls = [{"restartCount": 2, "state": {"waiting": {"reason": "ImagePullBackOff"}}}]
    about = {"namespace": "team", "labels": {}, "uid": "p"}
    pods = [
        {"metadata": about | {"name": "flowers-1-0-x"}, "status": {"phase": "Pending", "conditions": [scheduled]}},
        {"metadata": about | {"name": "flowers-1-1-y"}, "spec": {"nodeName": "n1"},
         "status": {"phase": "Running", "containerStatuses": pulls}},
    ]  # fmt: skip
    event = {
        "metadata": {"name": "e", "namespace": "team"}, "type": "Warning", "reason": "FailedScheduling",
        "message": "0/3 nodes", "count": 4, "lastTimestamp": TIME,
        "involvedObject": {"kind": "Pod", "name": "flowers-1-0-x"},
    }  # fmt: skip
    cluster = Cluster({"mptrainingjobs": [waiting], "pods": pods, "events": [event], "nodes": []})
    shown = board(cluster, flags=["--context", "gke"])
    (row,) = shown.facts()
    page = shown.job(row) or {}
    assert (page["phase"], page["state"]) == ("Pending", "Waiting")
    assert "Waiting: for machines" in page["why"]
    assert "no node has t4 now" in page["why"]
    assert [(pod["name"], pod["node"], pod["restarts"], pod["reason"]) for pod in page["pods"]] == [
        ("flowers-1-0-x", None, 0, "Unschedulable: no such node"),
        ("flowers-1-1-y", "n1", 2, "ImagePullBackOff"),
    ]
    assert page["events"][0] == {
        "time": NOW, "type": "Warning", "reason": "FailedScheduling", "message": "0/3 nodes",
        "about": "Pod flowers-1-0-x", "count": 4,
    }  # fmt: skip
    commands = [each["command"] for each in (shown.run(row) or {})["commands"]]
    assert commands[1] == "mptj logs -f flowers --context gke --namespace team"
    assert shown.job("other") is None
    cluster.forbidden = {"events"}
    page = shown.job(row) or {}
    assert "you may not list these" in page["events"][0]["message"]


def test_the_offline_page_has_curves_of_a_job_without_a_run_folder(
    monkeypatch: pytest.MonkeyPatch, attempt_events: Callable[..., list[Event]]
) -> None:
    """They are in the logs of its pods; a board that is open does not read these again and again."""
    monkeypatch.setattr(cluster_jobs, "chief_events", lambda server, uid: [attempt_events(steps=20)])
    cluster = Cluster({"mptrainingjobs": [job("flowers", uri="/mnt/claim/run", **RUNNING)]})
    for read_logs, steps in ((True, 20), (False, 0)):
        found = data(board(cluster, read_logs=read_logs))
        (row,) = found["runs"]["runs"]
        assert row["job"] == {"namespace": "team", "name": "flowers"}
        assert len(found["series"].get(row["id"], {}).get("loss", {}).get("y", ())) == steps


def test_names_and_namespaces_select_jobs() -> None:
    cluster = Cluster({"mptrainingjobs": [job("a"), job("b"), job("c", namespace="other")]})
    assert {run["name"] for run in board(cluster).runs()["runs"]} == {"a", "b"}
    assert {run["name"] for run in board(cluster, names=["b"]).runs()["runs"]} == {"b"}
    assert {run["name"] for run in board(cluster, everywhere=True).runs()["runs"]} == {"a", "b", "c"}


def test_a_cluster_that_does_not_answer_keeps_its_last_rows() -> None:
    cluster = Cluster({"mptrainingjobs": [job("flowers", **RUNNING)]})
    shown = board(cluster)
    cluster.away = True
    shown.refresh()
    found = shown.runs()
    assert len(found["runs"]) == 1
    assert "does not answer" in found["sources"][0]["problem"]
    cluster.away = False
    shown.refresh()
    assert shown.runs()["sources"][0]["problem"] is None


def test_the_folder_of_a_finished_job_is_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """500 finished jobs in a bucket cost 500 requests, however long the board is open; one that runs is read on."""
    listed: Counter[str] = Counter()

    def list_objects(where: str) -> list[object]:
        listed[where] += 1
        return []

    monkeypatch.setattr("mptraining.runs.listing.storage.list_objects", list_objects)
    ended = {"phase": "Succeeded", "startTime": TIME}
    objects = [job(f"ended-{number}", uri=f"gs://b/{number}", **ended) for number in range(500)]
    cluster = Cluster({"mptrainingjobs": [*objects, job("running", uri="gs://b/running", **RUNNING)]})
    clock = Clock(NOW)
    source = ClusterJobs(cluster, clock=clock)
    for _ in range(15):
        source.refresh()
        clock.now += 1
    assert listed.pop("gs://b/running") == 15 / sources.BUCKET_SECONDS
    assert set(listed.values()) == {1}
    assert len(listed) == 500
    # A job of the same name and run folder that was created again is another run.
    again = job("ended-0", uri="gs://b/0", phase="Running", startTime="2026-01-02T00:00:00Z")
    cluster.objects["mptrainingjobs"] = [again | {"metadata": again["metadata"] | {"uid": "another"}}]
    source.refresh()
    assert listed["gs://b/0"] == 2

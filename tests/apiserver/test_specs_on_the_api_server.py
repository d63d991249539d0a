"""The CRD on a real API server: the table of specs, transition rules, limits, and what kubectl shows.

tests/unit/api/test_specs_table.py runs the same table through models and rules; here CEL is compiled and the
schema enforced.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from hack.crd import custom_resource_definition
from tests.specs import ROWS, document, document_of
from tests.testbed import ControlPlane, Refused
from tests.testbed.kubernetes.access import wait_until
from tests.testbed.kubernetes.control_plane import CRDS
from tests.testbed.kubernetes.rest import APPLY

KIND = "/apis/mptraining.dev/v1alpha1"
Json = dict[str, Any]


class Jobs:
    """The MPTrainingJobs of one namespace."""

    def __init__(self, control_plane: ControlPlane, namespace: str) -> None:
        self.rest = control_plane.rest
        self.path = f"{KIND}/namespaces/{namespace}/mptrainingjobs"

    def refusal(self, document: Json) -> str | None:
        """Return the API server's message against it; None when it accepts it."""
        try:
            # Like `kubectl apply`: an unknown field is refused, not dropped.
            self.rest.post(self.path, document, {"dryRun": "All", "fieldValidation": "Strict"})
        except Refused as refused:
            return refused.message
        return None

    def create(self, document: Json) -> None:
        self.rest.post(self.path, document)

    def patch(self, patch: Json, name: str = "flowers") -> Json:
        answer: Json = self.rest.patch(f"{self.path}/{name}", patch)
        return answer

    def status(self, status: Json, name: str = "flowers") -> Json:
        answer: Json = self.rest.patch(f"{self.path}/{name}/status", {"status": status})
        return answer


@pytest.fixture(scope="module")
def dry(control_plane: ControlPlane) -> Jobs:
    """Jobs for dry runs only."""
    return Jobs(control_plane, "default")


@pytest.fixture
def jobs(control_plane: ControlPlane, namespace: str) -> Jobs:
    return Jobs(control_plane, namespace)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_the_api_server_says_what_the_table_says(dry: Jobs, row: Json) -> None:
    said = dry.refusal(document_of(row))
    if row["schema"] in ("valid", "operator"):
        assert said is None
    else:
        assert said is not None
        assert row["message"] in said


TRANSITION = r"no change after the job has started, except of runPolicy\.suspend, .*, checkpoint\.maxToKeep"


class TestTransitions:
    """After the job has started only runPolicy.suspend, deadlines and the number of checkpoints may change."""

    @pytest.fixture
    def started(self, jobs: Jobs) -> Jobs:
        patch = {
            **{"workers": 2, "training": {"epochs": 2}},
            "runPolicy": {"backoffLimit": 1, "activeDeadlineSeconds": 3600},
            "checkpoint": {"everySteps": 100, "maxToKeep": 3},
            "podTemplate": {
                "initContainers": [{"name": "a", "image": "a:1"}],
                "env": [{"name": "A", "value": "1"}],
                "lifecycle": {"postStart": {"sleep": {"seconds": 1}}},
                "dnsConfig": {"nameservers": ["10.0.0.1"]},
                "tolerations": [{"key": "b", "operator": "Exists"}],
                "affinity": {"nodeAffinity": {"a": "c"}},
            },
        }
        jobs.create(document(patch=patch))
        jobs.status({"currentAttempt": 1})
        return jobs

    def test_the_spec_of_a_started_job_is_immutable(self, started: Jobs) -> None:
        for change in (
            {"workers": 4},
            {"training": None},
            {"accelerator": {"type": "l4"}},
            {"podTemplate": {"labels": {"team": "a"}}},
            {"runPolicy": {"backoffLimit": 2}},
            {"runPolicy": {"activeDeadlineSeconds": 9, "backoffLimit": 2}},
            {"runPolicy": None},
            {"checkpoint": {"maxToKeep": 5, "everySteps": None}},
            {"checkpoint": None},
        ):
            with pytest.raises(Refused, match=TRANSITION):
                started.patch({"spec": change})
        # The whole status cannot be removed to edit the spec.
        with pytest.raises(Refused, match=TRANSITION):
            started.patch({"status": None, "spec": {"workers": 4}})

    @pytest.mark.parametrize(
        "part",
        [
            {"initContainers": [{"name": "a", "image": "a:2"}]},
            {"env": [{"name": "A", "value": "2"}]},
            {"lifecycle": {"postStart": {"sleep": {"seconds": 2}}}},
            {"dnsConfig": {"nameservers": ["10.0.0.2"]}},
            {"tolerations": [{"key": "a", "operator": "Exists"}]},
            {"affinity": {"nodeAffinity": {"a": "b"}}},
        ],
        ids=lambda part: next(iter(part)),
    )
    def test_parts_of_the_pod_template_without_a_schema_are_immutable_too(self, started: Jobs, part: Json) -> None:
        """Except the kind of a volume, which CEL does not compare: the next attempt refuses a forbidden one
        (golden/plans/restart.yaml).
        """
        with pytest.raises(Refused, match=TRANSITION):
            started.patch({"spec": {"podTemplate": part}})

    @pytest.mark.parametrize(
        "change",
        [
            {"runPolicy": {"suspend": False}},
            {"runPolicy": {"activeDeadlineSeconds": None}},
            {"runPolicy": {"suspend": True, "ttlSecondsAfterFinished": 60}},
            {"checkpoint": {"maxToKeep": 9}},
            {"checkpoint": {"maxToKeep": None}},
        ],
        ids=json.dumps,
    )
    def test_suspension_deadlines_and_the_number_of_checkpoints_may_change(self, started: Jobs, change: Json) -> None:
        found = started.patch({"spec": change})["spec"]
        for section, fields in change.items():
            assert {name: found[section].get(name) for name in fields} == fields

    def test_they_may_be_added_and_removed_with_their_section(self, jobs: Jobs) -> None:
        jobs.create(document())
        jobs.status({"phase": "Pending", "currentAttempt": 0})
        assert jobs.patch({"spec": {"workers": 4, "training": {"epochs": 7}}})["spec"]["workers"] == 4, (
            "it has not started"
        )
        with pytest.raises(Refused, match=r"spec\.managedBy: expected no change"):
            jobs.patch({"spec": {"managedBy": "example.com/farm"}})
        jobs.status({"currentAttempt": 1})
        added = {"runPolicy": {"activeDeadlineSeconds": 60}, "checkpoint": {"maxToKeep": 5}}
        jobs.patch({"spec": added})
        assert "checkpoint" not in jobs.patch({"spec": {"runPolicy": None, "checkpoint": None}})["spec"]
        for section in ({"checkpoint": {"everySteps": 5}}, {"runPolicy": {"backoffLimit": 1}}):
            with pytest.raises(Refused, match=TRANSITION):
                jobs.patch({"spec": section})


class TestStatus:
    def test_what_is_stored(self, jobs: Jobs) -> None:
        jobs.create(document() | {"status": {"currentAttempt": 7}})
        # The schema's default: for kstatus a job that no operator has seen is in progress.
        assert jobs.rest.get(f"{jobs.path}/flowers")["status"] == {"observedGeneration": -1}
        metrics = [{"name": "loss", "value": "NaN"}, {"name": "accuracy", "value": "0.98"}]
        progress = {"step": 500, "totalSteps": 1000, "percentComplete": 50, "metrics": metrics}
        jobs.status({"progress": progress})
        assert jobs.rest.get(f"{jobs.path}/flowers")["status"]["progress"] == progress
        for field, wrong in (
            ("phase", 3),
            ("conditions", [{"type": "Running", "status": True}]),
            ("progress", {"metrics": [{"name": "loss", "value": 0.1}]}),
            ("startTime", "yesterday"),
        ):
            with pytest.raises(Refused, match=rf"\b{field}\b.*: Invalid value"):
                jobs.status({field: wrong})

    def test_another_controller_adds_a_condition_and_keeps_it(self, jobs: Jobs) -> None:
        def condition(type: str, value: str = "True") -> Json:
            time = "2026-01-01T00:00:00Z"
            return {"type": type, "status": value, "reason": "Why", "message": "", "lastTransitionTime": time}

        theirs = "kueue.x-k8s.io/Admitted"
        jobs.create(document())
        applied = document() | {"status": {"conditions": [condition(theirs)]}}
        del applied["spec"]
        path, query = f"{jobs.path}/flowers/status", {"fieldManager": "kueue"}
        jobs.rest.patch(path, applied, kind=APPLY, query=query)
        # The operator's merge patch replaces the list by what it has read and its own conditions.
        jobs.status({"conditions": [condition(theirs), condition("Running", "False")]})
        applied["status"]["conditions"] = [condition(theirs, "False")]
        stored = jobs.rest.patch(path, applied, kind=APPLY, query=query)["status"]["conditions"]
        assert [(each["type"], each["status"]) for each in stored] == [(theirs, "False"), ("Running", "False")]
        with pytest.raises(Refused, match="Duplicate value"):
            jobs.status({"conditions": [condition("Running"), condition("Running", "False")]})


def test_a_megabyte_is_taken_or_refused_by_the_field_s_name(dry: Jobs) -> None:
    """Every field is as large as its bound allows: the API server does not refuse for the CEL budget, and no 500 is
    returned.
    """
    arguments = {f"key-{number}": "x" * 1000 for number in range(1000)}
    said = dry.refusal(document("function", {"program": {"function": {"arguments": arguments}}}))
    assert said is None or "program.function.arguments" in said
    said = dry.refusal(document(patch={"data": {"train": [f"gs://bucket/{number}" for number in range(100_000)]}}))
    assert said is not None
    assert "spec.data.train" in said
    assert len(said) < 20_000


class TestKubectl:
    @pytest.fixture(autouse=True)
    def known(self, control_plane: ControlPlane) -> None:
        """The discovery document that kubectl needs is published a moment after the resource is served."""
        for command in (("get", "mptj"), ("explain", "mptj.spec")):
            wait_until(
                lambda command=command: control_plane.kubectl(*command, check=False).returncode == 0,  # type: ignore[misc]
                " ".join(command),
                every=0.2,
            )

    def test_explain_describes_every_field(self, control_plane: ControlPlane) -> None:
        """kubectl finds every field of the models, and each has a description."""
        version = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
        names = {path.rsplit(".", 1)[1] for path, _ in _nodes(version["spec"], "")}
        told = control_plane.kubectl("explain", "mptj.spec", "--recursive").stdout
        shown = {line.split("\t")[0].strip() for line in told.splitlines() if "\t<" in line}
        assert names - shown == set()
        assert [path for path, node in _nodes(version["spec"], "spec") if not node.get("description")] == []

    def test_columns_and_names(self, control_plane: ControlPlane, namespace: str) -> None:
        jobs = Jobs(control_plane, namespace)
        jobs.create(document())
        values = {"strategy": "Mirrored", "precision": "mixed_float16"}
        resolved = [{"decision": name, "value": value, "reason": "r"} for name, value in values.items()]
        running = {"phase": "Running", "workers": 2, "resolved": resolved}
        jobs.status({**running, "progress": {"step": 1, "percentComplete": 42}})
        control_plane.kubectl("delete", "all", "--all", "-n", namespace)
        columns = ["NAME", "PHASE", "ACCELERATOR", "WORKERS", "STRATEGY", "PRECISION", "PROGRESS", "%", "AGE"]
        for name in ("mptj", "mptrainingjobs", "mptrainingjob", "mptrainingjobs.mptraining.dev"):
            head, row = control_plane.kubectl("get", name, "-n", namespace).stdout.splitlines()
            assert head.split() == columns
            expected = ["flowers", "Running", "t4", "2", "Mirrored", "mixed_float16", "42"]
            assert row.split()[:7] == expected, "`delete all` deletes no job"

    def test_client_side_apply_takes_the_crd_and_a_job(self, control_plane: ControlPlane, namespace: str) -> None:
        control_plane.kubectl("apply", "--dry-run=server", "-f", str(CRDS[0]))
        text = json.dumps(document())
        for said in ("created", "unchanged"):
            assert said in control_plane.kubectl("apply", "-n", namespace, "-f", "-", text=text).stdout


def _nodes(schema: Json, path: str) -> list[tuple[str, Json]]:
    """Return all properties below, with their paths."""
    found: list[tuple[str, Json]] = []
    inner = schema.get("items", schema)
    for name, node in inner.get("properties", {}).items():
        found += [(f"{path}.{name}", node), *_nodes(node, f"{path}.{name}")]
    values = schema.get("additionalProperties")
    return found + (_nodes(values, f"{path}.*") if isinstance(values, dict) else [])

"""Every branch of the plan as a YAML pair: observed state and expected actions. The files are in tests/golden/plans.

Times are seconds after 2026-01-01T00:00:00Z; inside statuses they are written `T+30`. A condition is one line by its
type: status, reason, time, generation, message. `like: resolved` stands for the fields of STATUS. An expected status
has only the changes. `MPTRAINING_GOLDEN_UPDATE=1` writes the results into the files; review them before the commit.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml

from mptraining_api.resolve.attempt import decisions
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import MPTrainingJob
from mptraining_api.status import JobStatus, format_time, parse_time
from mptraining_operator.jobs.plan.actions import Plan, StartAttempt
from mptraining_operator.jobs.plan.plan import plan
from mptraining_operator.jobs.plan.snapshot import (
    Limits,
    Lookups,
    Refusal,
    SeenBatchJob,
    SeenPod,
    SeenWarning,
    Snapshot,
)
from mptraining_operator.jobs.resources.job_objects import job_digest
from mptraining_operator.runtime.values import Key
from tests.fakes import with_image

FOLDER = Path(__file__).parents[3] / "golden" / "plans"
BASE = parse_time("2026-01-01T00:00:00Z")
UPDATE = bool(os.environ.get("MPTRAINING_GOLDEN_UPDATE"))
CLUSTER = ClusterSettings(runtimes=with_image("mptraining/trainer:test"))
TIMES = ("created", "started", "ended_at", "changed", "deletion", "disrupted_at", "finished", "scheduled", "at")

SPEC: dict[str, Any] = {
    "accelerator": {"type": "t4", "countPerWorker": 4},
    "workers": 2,
    "program": {"application": {"name": "cnn"}},
    "data": {"train": ["gs://bucket/train-*.tfrecord"]},
    "training": {"epochs": 5, "batchSize": {"global": 64}},
}


def parsed(spec: Mapping[str, Any]) -> MPTrainingJob:
    metadata = {"name": "flowers", "namespace": "team", "uid": "uid-1"}
    return MPTrainingJob.parse(
        {"apiVersion": "mptraining.dev/v1alpha1", "kind": "MPTrainingJob", "metadata": metadata, "spec": spec}
    )


# What the intent of attempt 1 writes of SPEC, and no later plan changes.
STATUS: dict[str, Any] = {
    "applicationFailures": 0,
    "infrastructureRestarts": 0,
    "workers": 2,
    "replicasInSync": 8,
    "resolved": [decision.to_document() for decision in decisions(resolve(parsed(SPEC), CLUSTER))],
    "observedGeneration": 1,
}
RESOLVED = {key: value for key, value in STATUS.items() if key != "observedGeneration"}
_CONDITION = re.compile(r"(True|False|Unknown) (\S+) (T\+\d+)(?: gen (\d+))?: (.*)", re.DOTALL)


def cases() -> list[Any]:
    found = []
    for file in sorted(FOLDER.glob("*.yaml")):
        # libyaml is ten times as fast: 150 kB are read whenever tests are collected.
        document = yaml.load(file.read_text(), Loader=yaml.CSafeLoader)
        found += [pytest.param(file, case, id=f"{file.stem}: {case['name']}") for case in document]
    return found


@pytest.mark.parametrize(("file", "case"), cases())
def test_the_plan_of(file: Path, case: dict[str, Any]) -> None:
    """As long as nothing else changes, a status that was written is not written again."""
    snapshot, now = seen(case["seen"]), BASE + case.get("now", 60)
    found = plan(snapshot, now)
    got = written(found, snapshot)
    if UPDATE:
        update(file, case["name"], got)
    assert got == case.get("plan"), yaml.safe_dump(got, sort_keys=False)
    for _ in range(3):
        if found.status is None:
            return
        lookups = snapshot.lookups
        if found.job_text:
            lookups = dataclasses.replace(lookups, job_text=found.job_text, refusal=None)
        snapshot = dataclasses.replace(snapshot, status=found.status, lookups=lookups)
        found = plan(snapshot, now)
    assert found.status is None


def seen(document: Mapping[str, Any]) -> Snapshot:
    spec = merged(SPEC, document.get("spec", {}))
    job = None
    if "problem" not in document or document.get("readable"):
        job = parsed(spec)
    status = document.get("status", {})
    if status is not None:
        status = with_conditions({**(STATUS if "like" in status else {}), **status})
        status.pop("like", None)
    lookups = dict(document.get("lookups", {}))
    if lookups.pop("jobFile", None):
        assert job is not None
        fallback = document.get("cpuFallback", False)
        frozen = dataclasses.replace(CLUSTER, runtimes=with_image("mptraining/trainer:frozen"), cpu_fallback=fallback)
        lookups["job_text"] = resolve(job, frozen).to_json()
        if "currentAttempt" in (status or ()):
            status["jobDigest"] = job_digest(lookups["job_text"])
    if "refusal" in lookups:
        lookups["refusal"] = Refusal(**absolute(lookups["refusal"]))
    if "warnings" in lookups:
        seen = {uid: {**each, "read_at": BASE + each["read_at"]} for uid, each in lookups["warnings"].items()}
        lookups["warnings"] = MappingProxyType({uid: SeenWarning(**each) for uid, each in seen.items()})
    if "unready_nodes" in lookups:
        lookups["unready_nodes"] = MappingProxyType(lookups["unready_nodes"])
    return Snapshot(
        key=Key("team", "flowers"),
        uid="uid-1",
        generation=document.get("generation", 1),
        created=BASE,
        job=job,
        status=None if status is None else JobStatus.parse(stamped(status)),
        problem=document.get("problem", ""),
        deleting=document.get("deleting", False),
        batch_jobs=tuple(batch_job(each) for each in document.get("batchJobs", ())),
        pods=tuple(pod(each) for each in document.get("pods", ())),
        predecessors=tuple(
            pod({"job_uid": "uid-0", **predecessor}) for predecessor in document.get("predecessors", ())
        ),
        lookups=Lookups(**lookups),
        limits=Limits(
            cluster=dataclasses.replace(
                CLUSTER,
                cpu_fallback=document.get("cpuFallback", False),
                runtimes=with_image("mptraining/trainer:test", limits=document.get("limits", {})),
            ),
            operator_namespace=document.get("operatorNamespace", ""),
        ),
        other_workers=document.get("otherWorkers", 0),
        reports_since=None if (since := document.get("reportsSince", 0)) is None else BASE + since,
    )


def batch_job(document: Mapping[str, Any]) -> SeenBatchJob:
    attempt = document.get("attempt", 1)
    default = {
        "name": f"flowers-{attempt}",
        "uid": f"job-{attempt}",
        "owner_uid": "uid-1",
        "attempt": attempt,
        "created": 0,
        "started": 0,
        "parallelism": 2,
    }
    return SeenBatchJob(**absolute({**default, **document}))


def pod(document: Mapping[str, Any]) -> SeenPod:
    attempt, index = document.get("attempt", 1), document.get("index", 0)
    default = {
        "name": f"flowers-{attempt}-{index}-abcde",
        "uid": f"pod-{attempt}-{index}",
        "job_uid": "uid-1",
        "owner_uid": f"job-{attempt}",
        "attempt": attempt,
        "index": index,
        "phase": "Running",
        "node": f"node-{index}",
    }
    return SeenPod(**absolute({**default, **document}))


def absolute(document: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value + BASE if key in TIMES and value is not None else value for key, value in document.items()}


def with_conditions(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status with its conditions as the API has them."""
    found = dict(status)
    if isinstance(lines := status.get("conditions"), dict):
        found["conditions"] = [condition(type, line) for type, line in lines.items()]
    return found


def condition(type: str, line: str) -> dict[str, Any]:
    match = _CONDITION.fullmatch(line)
    assert match, f"{type}: {line!r}; expected STATUS REASON T+SECONDS gen NUMBER: MESSAGE"
    status, reason, time, generation, message = match.groups()
    found = {"type": type, "status": status, "reason": reason, "message": message, "lastTransitionTime": time}
    return found if generation is None else {**found, "observedGeneration": int(generation)}


def condition_line(document: Mapping[str, Any]) -> str:
    generation = f" gen {document['observedGeneration']}" if "observedGeneration" in document else ""
    head = f"{document['status']} {document['reason']} {document['lastTransitionTime']}{generation}"
    return f"{head}: {document.get('message', '')}"


def stamped(value: Any) -> Any:
    """Return `T+30` as a timestamp."""
    if isinstance(value, dict):
        return {key: stamped(each) for key, each in value.items()}
    if isinstance(value, list):
        return [stamped(each) for each in value]
    if isinstance(value, str) and (match := re.fullmatch(r"T\+(\d+)", value)):
        return format_time(BASE + int(match[1]))
    return value


def unstamped(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: unstamped(each) for key, each in value.items()}
    if isinstance(value, list):
        return [unstamped(each) for each in value]
    if isinstance(value, str) and re.fullmatch(r"2026-01-\d\dT[\d:]+Z", value):
        return f"T+{parse_time(value) - BASE:.0f}"
    return value


def merged(base: Any, more: Any) -> Any:
    if isinstance(base, dict) and isinstance(more, dict):
        return {key: merged(base.get(key), more.get(key, base.get(key))) for key in {**base, **more}}
    return more


def changes(before: JobStatus, after: JobStatus) -> dict[str, Any]:
    old, new = unstamped(before.to_document()), unstamped(after.to_document())
    for document in (old, new):
        document["conditions"] = {each["type"]: condition_line(each) for each in document.get("conditions", ())}
    found = {key: new.get(key) for key in {**old, **new} if old.get(key) != new.get(key)}
    if all(found.get(key) == value for key, value in RESOLVED.items()):
        found = {"like": "resolved", **{key: value for key, value in found.items() if key not in RESOLVED}}
    if found.get("resolved"):
        found["resolved"] = {each["decision"]: f"{each['value']}: {each['reason']}" for each in found["resolved"]}
    if "conditions" in found:
        types = {**old["conditions"], **new["conditions"]}
        changed = {type: new["conditions"].get(type, "gone") for type in types}
        found["conditions"] = {type: line for type, line in changed.items() if line != old["conditions"].get(type)}
    return found


def written(found: Plan, snapshot: Snapshot) -> dict[str, Any]:
    """Return the plan as the YAML files contain it: the status's changes only, the resolved job by its image."""
    document: dict[str, Any] = {}
    if found.status is not None:
        document["status"] = changes(snapshot.status or JobStatus(), found.status)
    if found.actions:
        document["actions"] = [action(each) for each in found.actions]
    if found.job_text:
        document["job"] = ResolvedJob.read(found.job_text).image
        assert found.status is not None
        assert found.status.job_digest == job_digest(found.job_text)
        document["status"].pop("jobDigest", None)
    if found.event_records:
        document["event_records"] = [
            f"{record.type} {record.reason}: {record.message}" for record in found.event_records
        ]
    if found.wake_at is not None:
        document["wakeAt"] = round(found.wake_at - BASE, 3)
    if found.restart:
        document["restart"] = found.restart
    if found.first_run is not None:
        document["firstRun"] = f"{found.first_run:.0f} s"
    return document


def action(each: Any) -> str:
    if isinstance(each, StartAttempt):
        return f"StartAttempt {each.number} with {each.image or each.job.image} on {each.job.accelerator.type}"
    return " ".join([type(each).__name__, *(str(value) for value in dataclasses.asdict(each).values())])


class Compact(yaml.SafeDumper):
    """Writes short mappings and lists without nested ones on one line."""

    def represent_mapping(self, *arguments: Any, **options: Any) -> yaml.MappingNode:
        node = super().represent_mapping(*arguments, **options)
        values = [each for pair in node.value for each in pair]
        node.flow_style = all(isinstance(value, yaml.ScalarNode) for value in values) and (
            sum(len(value.value) + 2 for value in values) < 90
        )
        return node

    def represent_sequence(self, *arguments: Any, **options: Any) -> yaml.SequenceNode:
        node = super().represent_sequence(*arguments, **options)
        node.flow_style = all(isinstance(each, yaml.ScalarNode) and len(each.value) < 30 for each in node.value)
        return node


def yaml_of(document: list[dict[str, Any]]) -> str:
    return "\n".join(
        yaml.dump([case], Dumper=Compact, sort_keys=False, width=120, allow_unicode=True) for case in document
    )


def update(file: Path, name: str, got: dict[str, Any]) -> None:
    document = yaml.safe_load(file.read_text())
    for case in document:
        if case["name"] == name:
            case["plan"] = got
    file.write_text(yaml_of(document))
    pytest.skip("golden file updated")

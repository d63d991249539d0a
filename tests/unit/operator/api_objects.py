"""Objects as the API server sends them, and as the operator decodes and parses them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mptraining_api.kubernetes_api import BATCH_JOBS, PODS, Resource
from mptraining_operator.jobs.plan.snapshot import SeenBatchJob, SeenPod
from mptraining_operator.jobs.watch import api_objects, parse

Raw = dict[str, Any]
CREATED = "2026-01-01T00:00:00Z"


def raw_job(
    name: str = "flowers",
    *,
    uid: str = "job-1",
    version: int = 10,
    namespace: str = "team",
    status: Mapping[str, Any] | None = None,
    generation: int = 1,
    **spec: Any,
) -> Raw:
    """Return an MPTrainingJob of two workers; `spec` adds fields, or replaces these."""
    metadata = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": str(version)}
    raw = {
        "apiVersion": "mptraining.dev/v1alpha1",
        "kind": "MPTrainingJob",
        "metadata": {**metadata, "generation": generation, "creationTimestamp": CREATED},
        "spec": {
            "accelerator": {"type": "t4", "countPerWorker": 1},
            "workers": 2,
            "program": {"application": {"name": "cnn"}},
            "data": {"train": ["gs://bucket/train-*.tfrecord"]},
            "training": {"epochs": 1, "batchSize": {"global": 64}},
            **spec,
        },
    }
    return raw if status is None else {**raw, "status": dict(status)}


def child(name: str, uid: str, version: int, owner: Raw, job_uid: str, attempt: int, **labels: str) -> Raw:
    """Return the metadata of a child of the job."""
    about = {"mptraining.dev/job": "flowers", "mptraining.dev/job-uid": job_uid, "mptraining.dev/attempt": str(attempt)}
    metadata = {"name": name, "namespace": "team", "uid": uid, "resourceVersion": str(version)}
    return {**metadata, "labels": {**about, **labels}, "ownerReferences": [{**owner, "controller": True}]}


def raw_batch_job(
    name: str = "flowers-1",
    *,
    uid: str = "batch-1",
    owner: str = "job-1",
    version: int = 20,
    attempt: int = 1,
    conditions: tuple[tuple[str, str], ...] = (),
    **status: Any,
) -> Raw:
    """Return the Indexed Job of an attempt; `conditions` as (type, status) pairs."""
    metadata = child(name, uid, version, {"kind": "MPTrainingJob", "name": "flowers", "uid": owner}, owner, attempt)
    because = {"reason": "BecauseOf", "message": "words", "lastTransitionTime": "2026-01-01T00:01:00Z"}
    written = [{"type": type, "status": value, **because} for type, value in conditions]
    return {
        "metadata": {**metadata, "creationTimestamp": "2026-01-01T00:00:10Z"},
        "spec": {"parallelism": 2, "completions": 2, "suspend": False},
        "status": {**status, "conditions": written},
    }


def raw_pod(
    name: str = "flowers-1-0-abcde",
    *,
    uid: str = "pod-0",
    job_uid: str = "job-1",
    owner: str = "batch-1",
    version: int = 30,
    index: int = 0,
    phase: str = "Running",
    containers: tuple[Raw, ...] = (),
    init: tuple[Raw, ...] = (),
    conditions: tuple[Raw, ...] = (),
    metadata: Raw | None = None,
    **status: Any,
) -> Raw:
    """Return a worker's pod; `containers` and `init` as container states, `conditions` as the API server's."""
    labels = {"batch.kubernetes.io/job-completion-index": str(index)}
    about = child(name, uid, version, {"kind": "Job", "name": "flowers-1", "uid": owner}, job_uid, 1, **labels)
    return {
        "metadata": {**about, **(metadata or {})},
        "spec": {"nodeName": "node-1"},
        "status": {
            "phase": phase,
            "conditions": list(conditions),
            "initContainerStatuses": [{"name": "source", "state": state} for state in init],
            "containerStatuses": [{"name": "trainer", "state": state} for state in containers],
            **status,
        },
    }


def raw_event(
    uid: str = "event-1",
    *,
    about: str = "batch-1",
    name: str = "flowers-1",
    message: str = "exceeded quota: gpus",
    **other: Any,
) -> Raw:
    """Return a FailedCreate event of a Job."""
    return {
        "metadata": {"name": uid, "namespace": "team", "uid": uid, "resourceVersion": "40"},
        "involvedObject": {"kind": "Job", "namespace": "team", "name": name, "uid": about},
        "reason": "FailedCreate",
        "message": message,
        "firstTimestamp": "2026-01-01T00:00:20Z",
        "lastTimestamp": "2026-01-01T00:00:30Z",
        **other,
    }


def decoded(resource: Resource, raw: Raw) -> Any:
    """Return an object as the operator's stream of the resource decodes it."""
    types: dict[Resource, Any] = {BATCH_JOBS: api_objects.Job, PODS: api_objects.Pod}
    return api_objects.convert(raw, types[resource])


def seen_pod(raw: Raw) -> SeenPod:
    return parse.pod(decoded(PODS, raw))


def seen_batch_job(raw: Raw) -> SeenBatchJob:
    return parse.batch_job(decoded(BATCH_JOBS, raw))


def version_of(raw: Raw) -> int:
    return parse.version_number(raw["metadata"]["resourceVersion"])

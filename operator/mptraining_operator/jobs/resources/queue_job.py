"""The Job that holds a job's place in Kueue's queue over all attempts.

Kueue ends the Workload of a batch/v1 Job with the Job: a job whose attempt failed would lose its quota and its place.
So one Job is queued for all attempts: its `spec.managedBy` is this operator, Kubernetes' Job controller creates no pods
for it, and the operator writes its status. Kueue suspends and resumes it, and writes the settings of the admitted
flavor into its template, from which each attempt takes them. It controls the Jobs of the attempts, so that Kueue takes
these for children of a Job that it admitted, also with `manageJobsWithoutQueueName` or a default queue.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mptraining_api.spec import MANAGED_BY_OPERATOR, Scheduling
from mptraining_operator.jobs.resources import names
from mptraining_operator.jobs.resources.job_objects import Owner, metadata

QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY_CLASS = "kueue.x-k8s.io/priority-class"
# Kueue's pkg/controller/jobs/job: partial admission of a Job whose completions equal its parallelism.
MIN_PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"
EQUAL_COMPLETIONS = "kueue.x-k8s.io/job-completions-equal-parallelism"

# Fields that decide where pods run and what they cost. Environment, volumes and commands do not.
_POD_FIELDS = (
    *("restartPolicy", "securityContext", "nodeSelector", "affinity", "tolerations", "priorityClassName"),
    *("schedulerName", "runtimeClassName", "topologySpreadConstraints", "resourceClaims", "resources"),
)
_CONTAINER_FIELDS = ("name", "image", "restartPolicy", "securityContext", "resources")
_ADMITTED = ("restartPolicy", "resources")
# The API server adds these labels to the template of every Job.
_JOB_LABELS = frozenset(
    ("controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name")
)


@dataclass(frozen=True, slots=True)
class Admitted:
    """The queue's Job of an admitted job; `placement` is what it requires of the pods, see `queue_placement`."""

    name: str
    uid: str
    placement: str


def queue_labels(scheduling: Scheduling) -> dict[str, str]:
    """Return the labels that Kueue reads; none for a job without a queue."""
    labels = {QUEUE: scheduling.queue_name, PRIORITY_CLASS: scheduling.workload_priority_class_name}
    return {key: value for key, value in labels.items() if value} if scheduling.queue_name else {}


def queue_job(
    owner: Owner,
    attempt: Mapping[str, Any],
    scheduling: Scheduling,
    *,
    machine: int = 0,
    least_workers: int | None = None,
    digest: str = "",
) -> dict[str, Any]:
    """Build the queue's Job from the Indexed Job of an attempt.

    `machine`: that of the attempt. Kueue may admit any number of workers from `least_workers` on. `digest`: see
    `admission_digest`.
    """
    workers = attempt["spec"]["parallelism"]
    labels = {**names.job_labels(owner.name, owner.uid), names.MANAGED_BY: names.OPERATOR, names.QUEUE_JOB: "true"}
    annotations = {names.MACHINE: str(machine)} if machine else {}
    if digest:
        annotations[names.QUEUE_DIGEST] = digest
    if least_workers is not None and least_workers < workers:
        annotations |= {MIN_PARALLELISM: str(least_workers), EQUAL_COMPLETIONS: "true"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            **metadata(owner, names.queue_job(owner.name), {**labels, **queue_labels(scheduling)}),
            "annotations": annotations,
        },
        "spec": {
            "managedBy": MANAGED_BY_OPERATOR,
            "suspend": True,
            "completionMode": "Indexed",
            "completions": workers,
            "parallelism": workers,
            "template": _template(attempt),
        },
    }


def admission_digest(attempt: Mapping[str, Any], scheduling: Scheduling, least_workers: int) -> str:
    """Return the SHA-256 of what the queue's Job of that attempt asks the queue for.

    Images are not a part of it: another default image of the operator does not cost a job its place.
    """
    pod = _template(attempt)["spec"]
    for key in ("initContainers", "containers"):
        pod[key] = [
            {name: container[name] for name in _ADMITTED if name in container} for container in pod.get(key, ())
        ]
    parts = [pod, attempt["spec"]["parallelism"], least_workers, queue_labels(scheduling)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _template(attempt: Mapping[str, Any]) -> dict[str, Any]:
    template = attempt["spec"]["template"]
    pod_metadata, pod = template["metadata"], template["spec"]
    dropped = (names.JOB, names.JOB_UID, names.ATTEMPT, names.PEERS)
    containers = {
        key: [{name: container[name] for name in _CONTAINER_FIELDS if name in container} for container in pod[key]]
        for key in ("initContainers", "containers")
        if pod.get(key)
    }
    return {
        "metadata": {
            "labels": {key: value for key, value in pod_metadata["labels"].items() if key not in dropped},
            "annotations": pod_metadata["annotations"],
        },
        "spec": {**{key: pod[key] for key in _POD_FIELDS if key in pod}, **containers},
    }


def queue_placement(template: Mapping[str, Any]) -> str:
    """Return what the template of the queue's Job requires of the pods, after Kueue has admitted it, as JSON."""
    pod_metadata, pod = template.get("metadata") or {}, template.get("spec") or {}
    labels = {key: value for key, value in (pod_metadata.get("labels") or {}).items() if key not in _JOB_LABELS}
    fields = {
        "labels": labels,
        "annotations": pod_metadata.get("annotations") or {},
        "nodeSelector": pod.get("nodeSelector") or {},
        "tolerations": pod.get("tolerations") or [],
        "schedulingGates": pod.get("schedulingGates") or [],
    }
    return json.dumps(fields, sort_keys=True)


def with_admission(batch_job: dict[str, Any], admitted: Admitted) -> dict[str, Any]:
    """Return the Indexed Job of an attempt on the machines that the queue admitted, controlled by the queue's Job.

    What the attempt has itself takes precedence: the queue's Job was built from an earlier attempt.
    """
    admission: dict[str, Any] = json.loads(admitted.placement)
    template = batch_job["spec"]["template"]
    pod_metadata, pod = template["metadata"], template["spec"]
    for key in ("labels", "annotations"):
        pod_metadata[key] = {**admission[key], **pod_metadata.get(key, {})}
    if admission["nodeSelector"]:
        pod["nodeSelector"] = {**admission["nodeSelector"], **pod.get("nodeSelector", {})}
    for key in ("tolerations", "schedulingGates"):
        more = [item for item in admission[key] if item not in pod.get(key, [])]
        if more:
            pod[key] = [*pod.get(key, []), *more]
    (training_job,) = batch_job["metadata"]["ownerReferences"]
    queue = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": admitted.name,
        "uid": admitted.uid,
        "controller": True,
        # It is deleted when the job is suspended, which must not wait for the attempts.
        "blockOwnerDeletion": False,
    }
    batch_job["metadata"]["ownerReferences"] = [{**training_job, "controller": False}, queue]
    batch_job["metadata"].setdefault("annotations", {})[names.QUEUE_JOB_UID] = admitted.uid
    return batch_job

"""Execution of the actions about a job's place in its queue; see `plan.kueue`."""

from __future__ import annotations

from typing import Any

from mptraining_api.kubernetes_api import BATCH_JOBS, LOCAL_QUEUES, ApiProblem, Raw
from mptraining_api.resolve.attempt import possible_workers
from mptraining_api.spec import Scheduling
from mptraining_api.status import format_time, truncated
from mptraining_operator.jobs.children import NotCreated, create_child
from mptraining_operator.jobs.plan.actions import JoinQueue, ReportToQueue
from mptraining_operator.jobs.plan.snapshot import Snapshot
from mptraining_operator.jobs.resources import queue_job
from mptraining_operator.jobs.resources.environment import PodSettings
from mptraining_operator.jobs.resources.indexed_job import indexed_job
from mptraining_operator.runtime.cluster import Cluster


def create_place(cluster: Cluster, snapshot: Snapshot, action: JoinQueue, settings: PodSettings) -> Raw:
    """Create the Job that holds the job's place, and return it as stored.

    Raises NotCreated, NamespaceDeleted, Problem for a job of which no pod can be built, and ApiProblem.
    """
    owner, start = snapshot.owner, action.start
    attempt = indexed_job(owner, start.job, attempt=1, settings=settings, machine=start.machine, workers=start.workers)
    scheduling = start.job.scheduling or Scheduling()
    _find_queue(cluster, owner.namespace, scheduling.queue_name or "")
    body = queue_job.queue_job(
        owner,
        attempt,
        scheduling,
        machine=start.machine,
        least_workers=possible_workers(start.job)[0],
        digest=action.digest,
    )
    started = snapshot.status is not None and snapshot.status.current_attempt
    created = create_child(cluster, BATCH_JOBS, owner, body, strict=not started)
    if "managedBy" not in created["spec"]:
        # Kubernetes' Job controller would create pods for it. Kueue has not admitted it yet.
        name, uid = body["metadata"]["name"], created["metadata"]["uid"]
        cluster.delete(BATCH_JOBS, owner.namespace, name, uid=uid, propagation="Background")
        gate = "queues need the feature gate JobManagedBy, which is on by default"
        raise NotCreated("Refused", f"Job {name}", f"the API server dropped its spec.managedBy: {gate}")
    return created


def _find_queue(cluster: Cluster, namespace: str, name: str) -> None:
    """Raise NotCreated if nobody would admit the job: Kueue ignores the Jobs of a queue that does not exist."""
    for resource in LOCAL_QUEUES:
        try:
            cluster.get(resource, namespace, name)
        except ApiProblem as problem:
            if problem.status != 404:
                raise
            if problem.kind:
                message = f"there is none in the namespace {namespace!r}: kubectl get localqueues -n {namespace}"
                raise NotCreated("NoQueue", f"LocalQueue {name}", message) from None
        else:
            return
    raise NotCreated("NoQueue", f"LocalQueue {name}", "the API server does not serve it: Kueue is not installed")


def status_changes(action: ReportToQueue, now: float) -> dict[str, Any]:
    """Return the merge patch of a Job's status, as Kubernetes' Job controller would write it."""
    changes: dict[str, Any] = {"active": action.active, "ready": action.ready, "terminating": 0}
    if action.started is not None:
        changes["startTime"] = format_time(action.started)
    if not action.ended:
        return changes
    # The API server wants the first of the two conditions before, or together with, the second.
    first = "SuccessCriteriaMet" if action.ended == "Complete" else "FailureTarget"
    at = format_time(max(now, action.started or now))
    changes["conditions"] = [
        {
            "type": kind,
            "status": "True",
            "reason": action.reason,
            "message": truncated(action.message),
            "lastProbeTime": at,
            "lastTransitionTime": at,
        }
        for kind in (first, action.ended)
    ]
    changes["uncountedTerminatedPods"] = {}
    if action.ended == "Complete":
        changes["completionTime"] = at
        changes["succeeded"] = action.workers
        changes["completedIndexes"] = "0" if action.workers == 1 else f"0-{action.workers - 1}"
    return changes

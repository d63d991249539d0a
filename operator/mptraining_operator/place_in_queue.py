"""Execution of the actions about a job's place in its queue; see `plan.queue_job`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mptraining_api.kubernetes_api import (
    BATCH_JOBS,
    LOCAL_QUEUES,
    ApiProblem,
    Raw,
)
from mptraining_api.problems import Problem
from mptraining_api.resolve.attempt import possible_nodes
from mptraining_api.spec import Scheduling
from mptraining_api.status import format_time, truncated
from mptraining_operator.children import NamespaceDeleted, NotCreated, create_child
from mptraining_operator.cluster import Cluster
from mptraining_operator.plan.actions import JoinQueue, ReportToQueue
from mptraining_operator.plan.snapshot import Key, Refusal, Snapshot
from mptraining_operator.resources import names, queue_job
from mptraining_operator.resources.environment import PodSettings
from mptraining_operator.resources.indexed_job import indexed_job
from mptraining_operator.resources.job_objects import Owner
from mptraining_operator.watch.cache import Cache


class PlaceInQueue:
    """Executes JoinQueue and ReportToQueue. Thread-safe for different jobs.

    `put` stores a Job that the API server returned in the cache.
    """

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        *,
        pod_settings: Callable[[Owner], PodSettings],
        put: Callable[[Key, Raw], object],
        clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._pod_settings = pod_settings
        self._put = put
        self._clock = clock

    def execute(self, action: JoinQueue | ReportToQueue, snapshot: Snapshot) -> bool:
        """Execute one action and return whether the job must be planned again. Raises ApiProblem."""
        if isinstance(action, ReportToQueue):
            return self._report(action, snapshot)
        owner = snapshot.owner
        try:
            return self._join(owner, action, snapshot)
        except NamespaceDeleted:
            return False
        except NotCreated as no:
            refusal = Refusal(no.child, no.message, self._clock(), no.kind)
        except Problem as problem:
            refusal = Refusal(f"Job {names.queue_job(owner.name)}", str(problem), self._clock(), "Invalid")
        return self._cache.update_lookups(snapshot.key, snapshot.uid, refusal=refusal)

    def _join(self, owner: Owner, action: JoinQueue, snapshot: Snapshot) -> bool:
        if snapshot.job is None:
            raise NamespaceDeleted
        spec, settings = snapshot.job.spec, self._pod_settings(owner)
        attempt = indexed_job(
            owner, action.job, spec, attempt=1, settings=settings, machine=action.machine, nodes=action.nodes
        )
        scheduling = spec.scheduling or Scheduling()
        self._find_queue(owner.namespace, scheduling.queue_name or "")
        body = queue_job.queue_job(
            owner,
            attempt,
            scheduling,
            machine=action.machine,
            least_workers=possible_nodes(action.job)[0],
            digest=action.digest,
        )
        started = snapshot.status is not None and snapshot.status.current_attempt
        created = create_child(self._cluster, BATCH_JOBS, owner, body, strict=not started)
        if "managedBy" not in created["spec"]:
            # Kubernetes' Job controller would create pods for it. Kueue has not admitted it yet.
            name, uid = body["metadata"]["name"], created["metadata"]["uid"]
            self._cluster.delete(BATCH_JOBS, owner.namespace, name, uid=uid, propagation="Background")
            message = (
                "the API server dropped its spec.managedBy: queues need the feature gate JobManagedBy, which is on by "
                "default"
            )
            raise NotCreated("Refused", f"Job {name}", message)
        self._put(snapshot.key, created)
        self._cache.update_lookups(snapshot.key, snapshot.uid, refusal=None)
        return True

    def _find_queue(self, namespace: str, name: str) -> None:
        """Raise NotCreated if nobody would admit the job: Kueue ignores the Jobs of a queue that does not exist."""
        for resource in LOCAL_QUEUES:
            try:
                self._cluster.get(resource, namespace, name)
            except ApiProblem as problem:
                if problem.status == 404 and problem.kind:
                    message = f"there is none in the namespace {namespace!r}: kubectl get localqueues -n {namespace}"
                    raise NotCreated("NoQueue", f"LocalQueue {name}", message) from None
                if problem.status == 404:
                    continue
                if problem.status != 403:
                    raise
            # 403: rights of an earlier version of the chart.
            return
        raise NotCreated("NoQueue", f"LocalQueue {name}", "the API server does not serve it: Kueue is not installed")

    def _report(self, action: ReportToQueue, snapshot: Snapshot) -> bool:
        """Write the status; return whether the queue's Job is another one than observed, or was changed since."""
        namespace, name = snapshot.key.namespace, action.queue_job
        body: dict[str, Any] = {"status": status_changes(action, self._clock())}
        if action.version:
            # Another Job of that name has another one, too; a uid as a precondition would be answered with 422.
            body["metadata"] = {"resourceVersion": str(action.version)}
        try:
            answer: Raw | None = self._cluster.patch(BATCH_JOBS, namespace, name, body, subresource="status")
            conflict = False
        except ApiProblem as problem:
            if problem.status not in (404, 409):
                raise
            answer, conflict = self._cluster.get_if_exists(BATCH_JOBS, namespace, name), True
        if answer is None or (action.uid and answer["metadata"]["uid"] != action.uid):
            self._cache.remove_missing(snapshot.key, action.uid)
        if answer is not None:
            self._put(snapshot.key, answer)
        return conflict


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
            "type": each,
            "status": "True",
            "reason": action.reason,
            "message": truncated(action.message),
            "lastProbeTime": at,
            "lastTransitionTime": at,
        }
        for each in (first, action.ended)
    ]
    changes["uncountedTerminatedPods"] = {}
    if action.ended == "Complete":
        changes["completionTime"] = at
        changes["succeeded"] = action.workers
        changes["completedIndexes"] = "0" if action.workers == 1 else f"0-{action.workers - 1}"
    return changes

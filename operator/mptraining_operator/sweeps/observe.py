"""The observed jobs of a sweep's trials, from the cache of jobs; the final metrics of those that have ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from mptraining_api import events
from mptraining_api.kubernetes_api import PODS
from mptraining_api.outcomes import PREEMPTED, by_reason
from mptraining_api.status import JobStatus, Phase, Progress, condition
from mptraining_api.sweep.actions import JobState, TrialJob
from mptraining_api.sweep.trial_job import rounded
from mptraining_operator.jobs.resources import names
from mptraining_operator.jobs.watch import api_objects
from mptraining_operator.jobs.watch.parse import StoredJob, optional_time, read_status
from mptraining_operator.runtime.cluster import Cluster

# Phases of a job whose workers run or ran in an earlier attempt.
_RUNNING = (Phase.RUNNING, Phase.RESTARTING)
_POD = msgspec.json.Decoder(api_objects.Pod)


def trial_job(job: StoredJob) -> TrialJob:
    """Return the observed job without its metrics."""
    status = read_status(job)[0] or JobStatus()
    state: JobState = "Running" if job.phase in _RUNNING else "Pending"
    message, infrastructure = "", False
    if job.ended:
        state = "Succeeded" if job.phase == Phase.SUCCEEDED else "Failed"
        if state == "Failed" and (end := condition(status, "Failed")) is not None:
            message = end.message
            # The outcomes of lost machines, storage that does not answer, and workers that could not start in time.
            infrastructure = by_reason(end.reason).exit_code == PREEMPTED.exit_code
    elif (waits := condition(status, "Running")) is not None and waits.status == "False":
        message = waits.message
    return TrialJob(
        name=job.key.name,
        state=state,
        suspended=job.suspended,
        infrastructure=infrastructure,
        message=message,
        completion=optional_time(status.completion_time),
    )


def final_metrics(cluster: Cluster, job: StoredJob) -> Mapping[str, float]:
    """Return the metrics that worker 0 of a finished job reported last, rounded. Raises ApiProblem.

    They are in its termination log, which outlives an operator that was killed when the report arrived; for pods that
    are gone, in `status.progress`. Both have the same numbers.
    """
    labels = {names.JOB_UID: job.uid, names.ATTEMPT: str(job.attempt), names.COMPLETION_INDEX: "0"}
    selector = ",".join(f"{name}={value}" for name, value in labels.items())
    for items, _ in cluster.pages(PODS, job.key.namespace, labelSelector=selector):
        for pod in map(_POD.decode, items):
            for container in pod.status.container_statuses:
                end = container.state.terminated
                event = events.parse(end.message or "") if end is not None and end.exit_code == 0 else None
                if isinstance(event, events.Finished) and event.metrics:
                    return rounded(event.metrics)
    try:
        reported = Progress.read(job.progress).metrics if job.progress else None
        return rounded({metric.name: float(metric.value) for metric in reported or ()})
    except ValueError:
        # A progress that was edited by hand is no measurement.
        return {}


@dataclass(slots=True)
class ObservedJobs:
    """The jobs of one sweep; each version of a job is parsed once, and metrics are read once."""

    _parsed: dict[str, tuple[str, int, TrialJob]] = field(default_factory=dict)
    _metrics: dict[str, Mapping[str, float]] = field(default_factory=dict)

    def observe(self, jobs: Collection[StoredJob], undecided: Collection[str], cluster: Cluster) -> dict[str, TrialJob]:
        """Return the observed jobs by name; metrics for those that are `undecided` alone. Raises ApiProblem.

        A job that is being deleted before its end counts as deleted.
        """
        observed = {}
        for job in jobs:
            if job.deleting and not job.ended:
                continue
            name = job.key.name
            known = self._parsed.get(name)
            if known is None or known[:2] != (job.uid, job.version):
                known = self._parsed[name] = job.uid, job.version, trial_job(job)
            seen = known[2]
            if seen.state == "Succeeded" and name in undecided:
                if job.uid not in self._metrics:
                    self._metrics[job.uid] = final_metrics(cluster, job)
                seen = replace(seen, metrics=self._metrics[job.uid])
            observed[name] = seen
        kept = {job.uid for job in jobs if job.key.name in undecided}
        self._metrics = {uid: metrics for uid, metrics in self._metrics.items() if uid in kept}
        self._parsed = {name: self._parsed[name] for name in observed}
        return observed

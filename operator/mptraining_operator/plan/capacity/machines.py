"""The machine of the next attempt: the first choice, or the alternative whose turn it is."""

from __future__ import annotations

from mptraining_api.resolve.attempt import possible_nodes
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.status import Attempt
from mptraining_operator.plan.actions import StartAttempt
from mptraining_operator.plan.snapshot import SeenBatchJob


def start_of(number: int, job: ResolvedJob, *, machine: int = 0, nodes: int | None = None) -> StartAttempt:
    """Return the start of an attempt of the frozen `job`.

    A job that was resolved again, because its frozen one was deleted, may not have that machine or size: the attempt
    then runs on the first choice, or has the number of workers of the job.
    """
    if machine > len(job.alternatives):
        machine = 0
    if job.nodes_range is None or nodes not in possible_nodes(job):
        nodes = None
    return StartAttempt(number, job, machine, nodes)


def start_again(attempt: Attempt, job: ResolvedJob) -> StartAttempt:
    """Return the start of an attempt that the status has and whose Indexed Job is missing."""
    return start_of(attempt.number, job, machine=attempt.machine or 0, nodes=attempt.workers)


def start_of_created(batch_job: SeenBatchJob, job: ResolvedJob) -> StartAttempt:
    """Return the start of the attempt whose Indexed Job exists and which the status does not have."""
    return start_of(batch_job.attempt, job, machine=batch_job.machine, nodes=batch_job.workers or batch_job.parallelism)

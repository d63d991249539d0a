"""What the children of a job are called and labelled: pure functions of the job's name, uid and attempt.

Deterministic names make a second creation a conflict instead of a second gang. All stay below 63 characters because
a job's name has at most 50.
"""

from __future__ import annotations

from mptraining_api.launch import TRAINER_PORT
from mptraining_api.spec import GROUP
from mptraining_api.status import (
    ATTEMPT,
    COMPLETION_INDEX,
    JOB,
    JOB_UID,
    SOURCE_CONTAINER,
    TRAINER_CONTAINER,
    config_map,
)

__all__ = [
    "ATTEMPT",
    "COMPLETION_INDEX",
    "JOB",
    "JOB_UID",
    "MANAGED_BY",
    "OPERATOR",
    "SOURCE_CONTAINER",
    "TRAINER_CONTAINER",
    "attempt_labels",
    "audience",
    "batch_job",
    "config_map",
    "hosts",
    "job_labels",
    "network_policy",
    "service",
]

MANAGED_BY = "app.kubernetes.io/managed-by"
OPERATOR = "mptraining-operator"


def service(job: str) -> str:
    """The headless Service that gives each worker a host name."""
    return f"{job}-workers"


def network_policy(job: str) -> str:
    return f"{job}-workers"


def batch_job(job: str, attempt: int) -> str:
    """The Indexed Job of one attempt; its pods have the host names `<this>-<index>`."""
    return f"{job}-{attempt}"


def hosts(job: str, namespace: str, attempt: int, processes: int) -> tuple[str, ...]:
    """host:port of each worker, in the order of their index."""
    domain = f"{service(job)}.{namespace}.svc"
    return tuple(f"{batch_job(job, attempt)}-{index}.{domain}:{TRAINER_PORT}" for index in range(processes))


def audience(namespace: str, uid: str) -> str:
    """Whom a worker's token is for: the progress endpoint, about this one job."""
    return f"{GROUP}/{namespace}/{uid}"


def job_labels(job: str, uid: str) -> dict[str, str]:
    """On every child, and the selector of the job's own pods."""
    return {JOB: job, JOB_UID: uid}


def attempt_labels(job: str, uid: str, attempt: int) -> dict[str, str]:
    """On the Indexed Job of an attempt and on its pods."""
    return {**job_labels(job, uid), ATTEMPT: str(attempt), MANAGED_BY: OPERATOR}

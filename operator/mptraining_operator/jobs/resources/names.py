"""Names and labels of a job's children, from the job's name, uid and attempt.

Names are deterministic, so that a second creation is a conflict instead of a second set of workers. They have at most
63 characters, because a job's name has at most 50.
"""

from __future__ import annotations

from mptraining_api.launch import TRAINER_PORT
from mptraining_api.spec import GROUP
from mptraining_api.status import ATTEMPT, COMPLETION_INDEX, JOB, JOB_UID, SOURCE_CONTAINER, TRAINER_CONTAINER
from mptraining_operator.runtime import values

# The labels and containers that the status names, too.
__all__ = ["ATTEMPT", "COMPLETION_INDEX", "JOB", "JOB_UID", "SOURCE_CONTAINER", "TRAINER_CONTAINER"]

MANAGED_BY = "app.kubernetes.io/managed-by"
OPERATOR = values.OPERATOR
# The annotation of an Indexed Job with the API that places all of its pods or none; absent for none.
GANG = f"{GROUP}/gang"
# The annotation of an Indexed Job with the machine of its attempt, as for `resolve.attempt.for_attempt`; absent: 0.
MACHINE = f"{GROUP}/machine"
# The attempt in the labels of the probe.
PROBE_ATTEMPT = 0
# The label of the pods of a job of several workers, which need host names.
PEERS = f"{GROUP}/peers"
# The label of the Job that holds the job's place in its queue, and runs no pods.
QUEUE_JOB = f"{GROUP}/queue-job"
# The annotation of that Job with the digest of what the queue admits, see `resources.queue_job.admission_digest`.
QUEUE_DIGEST = f"{GROUP}/queue-digest"
# The annotation of an attempt's Job, and of a probe, with the uid of that Job. The garbage collector removes the owner
# reference when that Job is deleted.
QUEUE_JOB_UID = f"{GROUP}/queue-job-uid"
# In each namespace: the headless Service that gives the workers host names, and the NetworkPolicy of the workers.
SERVICE = "mptraining-workers"
NETWORK_POLICY = "mptraining-workers"
# The claim of a worker's accelerators, in its pod.
CLAIM = "accelerators"


def claim_template(job: str, digest: str) -> str:
    """Return the name of a ResourceClaimTemplate; the digest is of the devices that it requests."""
    return f"{job}-{digest[:8]}"


def batch_job(job: str, attempt: int) -> str:
    """Return the name of an attempt's Indexed Job; its pods have the host names `<name>-<index>`."""
    return f"{job}-{attempt}"


def probe(job: str) -> str:
    """Return the name of an elastic job's probe; no attempt has it."""
    return f"{job}-probe"


def queue_job(job: str) -> str:
    """Return the name of the Job that holds the job's place in its queue."""
    return f"{job}-queue"


def hosts(job: str, namespace: str, attempt: int, workers: int) -> tuple[str, ...]:
    """Return host:port of each worker, ordered by index."""
    domain = f"{SERVICE}.{namespace}.svc"
    return tuple(f"{batch_job(job, attempt)}-{index}.{domain}:{TRAINER_PORT}" for index in range(workers))


def audience(namespace: str, uid: str) -> str:
    """Return the audience of a worker's token: the progress endpoint for one job."""
    return f"{GROUP}/{namespace}/{uid}"


def job_labels(job: str, uid: str) -> dict[str, str]:
    """Return the labels of every child, which also select the job's pods."""
    return {JOB: job, JOB_UID: uid}


def attempt_labels(job: str, uid: str, attempt: int) -> dict[str, str]:
    """Return the labels of an attempt's Indexed Job and its pods."""
    return {**job_labels(job, uid), ATTEMPT: str(attempt), MANAGED_BY: OPERATOR}

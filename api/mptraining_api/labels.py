"""What a job's objects on a cluster are called and labelled, as far as others than the operator look for them."""

from __future__ import annotations

from mptraining_api.spec import GROUP

# On every child of a job, whose name, uid and number of the attempt they carry.
JOB = f"{GROUP}/job"
JOB_UID = f"{GROUP}/job-uid"
ATTEMPT = f"{GROUP}/attempt"
# Kubernetes' own, on the pods of an Indexed Job.
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"

# The container that trains, and the one before it that unpacks the source.
TRAINER_CONTAINER = "trainer"
SOURCE_CONTAINER = "source"


def config_map(job: str) -> str:
    """The immutable ConfigMap that keeps `job.json` for all attempts."""
    return f"{job}-job"

"""The job as attempt 1 froze it: the text in its ConfigMap, and the digest in the status that vouches for it.

Whoever may submit a job with its source may make ConfigMaps, but not write a status. So a ConfigMap that was slipped
in, or made anew with another image or other machines, is not believed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from pydantic import ValidationError

from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.status import JobStatus
from mptraining_operator.creation import NotCreated
from mptraining_operator.plan.actions import Action, StartAttempt
from mptraining_operator.plan.snapshot import Snapshot
from mptraining_operator.resources import names
from mptraining_operator.resources.shared import JOB_FILE


def digest(text: str) -> str:
    """SHA-256, in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def with_digest(status: JobStatus, actions: Iterable[Action], known: ResolvedJob | None) -> JobStatus:
    """The status with the digest of the job that an attempt is about to freeze.

    Of one that is frozen already (`known`) it stays: another version may have written the same job in other words.
    """
    for action in actions:
        if isinstance(action, StartAttempt) and action.job != known:
            return status.model_copy(update={"job_digest": digest(action.job.to_json())})
    return status


def read(text: str, snapshot: Snapshot) -> ResolvedJob:
    """The job in the ConfigMap's `text`. Raises NotCreated, in the ConfigMap's name, for a job that is not what the
    status vouches for or that this version cannot read. Jobs of versions before 0.1 have no digest.
    """
    where = f"ConfigMap {names.config_map(snapshot.key.name)}"
    expected = snapshot.status.job_digest if snapshot.status else None
    if expected is not None and digest(text) != expected:
        words = f"{JOB_FILE} is not the job that status.jobDigest vouches for. Delete the ConfigMap: it is made anew."
        raise NotCreated("NameTaken", where, words)
    try:
        return ResolvedJob.read(text)
    except ValidationError as error:
        words = f"{JOB_FILE} was written by another version of the operator: {error.errors()[0]['msg']}"
        raise NotCreated("Refused", where, words) from None

"""How often and how long a job may try, every default decided; the operator's half of `resolve`.

Not part of the ResolvedJob, because no trainer needs it and nothing of it can change a running job's results.
"""

from __future__ import annotations

from mptraining_api.model import Model
from mptraining_api.spec_run import RunPolicy

# As batch/v1 Jobs and as the peers do it: a bug is tried a few times, a Spot machine may be taken away for days.
_BACKOFF_LIMIT = 3
_INFRASTRUCTURE_RETRIES = 20
# Longer than a cluster autoscaler takes for a new GPU machine; it ends the wait for one that never comes.
_PENDING_TIMEOUT = 1800


class ResolvedRunPolicy(Model):
    """Seconds, and numbers of retries; None means no limit."""

    backoff_limit: int
    infrastructure_retries: int
    active_deadline_seconds: int | None
    pending_timeout_seconds: int
    progress_deadline_seconds: int | None
    ttl_seconds_after_finished: int | None


def resolve_run_policy(written: RunPolicy | None) -> ResolvedRunPolicy:
    """What was written, with the defaults for the rest."""
    policy = written or RunPolicy()

    def given(value: int | None, default: int) -> int:
        return default if value is None else value

    return ResolvedRunPolicy(
        backoff_limit=given(policy.backoff_limit, _BACKOFF_LIMIT),
        infrastructure_retries=given(policy.infrastructure_retries, _INFRASTRUCTURE_RETRIES),
        active_deadline_seconds=policy.active_deadline_seconds,
        pending_timeout_seconds=given(policy.pending_timeout_seconds, _PENDING_TIMEOUT),
        progress_deadline_seconds=policy.progress_deadline_seconds,
        ttl_seconds_after_finished=policy.ttl_seconds_after_finished,
    )

"""How long to wait before the next attempt: pure arithmetic over the attempts so far."""

from __future__ import annotations

from mptraining_api import outcomes
from mptraining_api.outcomes import Budget
from mptraining_api.status import JobStatus
from mptraining_operator.plan.snapshot import Limits


def delay(status: JobStatus, limits: Limits) -> float:
    """Seconds after the last attempt's end; doubled for each attempt in a row that ended for the same kind of cause.

    batch/v1 Jobs wait 10 s, 20 s, 40 s … up to 6 minutes for a program that fails
    (kubernetes.io, "Pod backoff failure policy"); a lost machine is no reason to wait long.
    """
    kinds = [outcomes.by_reason(each.outcome).budget for each in status.attempts or () if each.outcome]
    if not kinds or kinds[-1] == Budget.NONE:
        return 0.0
    in_a_row = 0
    for kind in reversed(kinds):
        if kind != kinds[-1]:
            break
        in_a_row += 1
    first = limits.program_backoff if kinds[-1] == Budget.BACKOFF_LIMIT else limits.infrastructure_backoff
    return float(min(first * 2 ** (in_a_row - 1), limits.longest_backoff))

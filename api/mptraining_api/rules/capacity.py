"""Rules on the controller, the queue and the machines of a job together."""

from __future__ import annotations

import re

from mptraining_api.problems import nearest
from mptraining_api.rules.rule import Rule
from mptraining_api.spec import MANAGED_BY_OPERATOR, JobSpec

# As of a batch/v1 Job: a domain-prefixed path.
_CONTROLLER = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9/._~-]+$"

# Seconds of a job without runPolicy.pendingTimeoutSeconds: longer than a cluster autoscaler needs for a GPU machine.
PENDING_TIMEOUT = 1800

# The last machine needs a second of its own.
_BEFORE_LAST = (
    "(has(self.accelerator.tryForSeconds) ? self.accelerator.tryForSeconds : 1) * size(self.accelerator.alternatives)"
)
_LIMIT = (
    "(has(self.runPolicy) && has(self.runPolicy.pendingTimeoutSeconds) ? self.runPolicy.pendingTimeoutSeconds : "
    f"{PENDING_TIMEOUT})"
)


def _times(spec: JobSpec) -> tuple[int, int, int]:
    """Return for how long each machine is tried, the number of machines before the last, and the limit for all."""
    policy = spec.run_policy
    limit = policy.pending_timeout_seconds if policy else None
    others = len(spec.accelerator.alternatives or ())
    return spec.accelerator.try_for_seconds or 1, others, PENDING_TIMEOUT if limit is None else limit


def _all_tried(spec: JobSpec) -> bool:
    # The wait for a queue's admission does not count.
    in_queue = spec.scheduling is not None and spec.scheduling.queue_name is not None
    seconds, others, limit = _times(spec)
    return in_queue or not others or seconds * others < limit


def _untried(spec: JobSpec) -> tuple[str, str]:
    """Return the machine for which no time remains, with the sum and the limit, and a limit that suffices."""
    seconds, _, limit = _times(spec)
    machines = (spec.accelerator, *(spec.accelerator.alternatives or ()))
    index = -(-limit // seconds)
    found = (
        f"alternatives[{index - 1}] ({machines[index].type}) would never be tried: the {index} before it take "
        f"{seconds * index} s, and the job may wait for {limit} s"
    )
    return found, f"Raise runPolicy.pendingTimeoutSeconds to {seconds * len(machines)}, or lower tryForSeconds."


def other_controller(managed_by: str | None) -> str | None:
    """Return who has a job with this spec.managedBy; None for the operator's own."""
    if managed_by in (None, MANAGED_BY_OPERATOR):
        return None
    hint = nearest(managed_by, (MANAGED_BY_OPERATOR,))
    return f"a controller of that name has the job, and this operator leaves it alone. {hint}".strip(" .")


CAPACITY_RULES: tuple[Rule, ...] = (
    Rule(
        at="",
        field="spec.managedBy",
        cel=f"!has(self.spec.managedBy) || self.spec.managedBy.matches('{_CONTROLLER}')",
        message="a domain and a path, as example.com/farm or mptraining.dev/operator",
        next_step="Leave it out for this operator.",
        holds=lambda job: job.spec.managed_by is None or re.fullmatch(_CONTROLLER, job.spec.managed_by) is not None,
    ),
    Rule(
        at="spec",
        field="spec.accelerator.tryForSeconds",
        cel="!has(self.accelerator.alternatives) || (has(self.scheduling) && has(self.scheduling.queueName)) || "
        f"{_BEFORE_LAST} < {_LIMIT}",
        message="a tryForSeconds that leaves time for each machine within runPolicy.pendingTimeoutSeconds "
        f"({PENDING_TIMEOUT} if absent), after which a job that never ran fails",
        next_step="Raise runPolicy.pendingTimeoutSeconds above the sum, or lower tryForSeconds.",
        holds=_all_tried,
        explain=_untried,
    ),
    Rule(
        at="spec.scheduling",
        field="spec.scheduling.workloadPriorityClassName",
        cel="!has(self.workloadPriorityClassName) || has(self.queueName)",
        message="it together with queueName",
        next_step="It is a priority among the jobs of a queue; for the pods give priorityClassName.",
        holds=lambda scheduling: scheduling.workload_priority_class_name is None or scheduling.queue_name is not None,
    ),
)

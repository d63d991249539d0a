"""Rules on the controller, the queue and the machines of a job together."""

from __future__ import annotations

import re

from mptraining_api.machines import try_times
from mptraining_api.machines.try_times import PENDING_TIMEOUT
from mptraining_api.problems import nearest
from mptraining_api.rules.rule import Rule
from mptraining_api.spec import MANAGED_BY_OPERATOR, JobSpec

# As of a batch/v1 Job: a domain-prefixed path.
_CONTROLLER = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9/._~-]+$"

# The written times, and 1 s for each machine without one.
_LEAST = (
    "(has(self.accelerator.tryForSeconds) ? self.accelerator.tryForSeconds : 1) + "
    "self.accelerator.alternatives.map(a, has(a.tryForSeconds) ? a.tryForSeconds : 1).sum()"
)
_ALL_WRITTEN = "has(self.accelerator.tryForSeconds) && self.accelerator.alternatives.all(a, has(a.tryForSeconds))"
# The last of machines that all have times needs 1 s of its own.
_LAST = "self.accelerator.alternatives[size(self.accelerator.alternatives) - 1].tryForSeconds - 1"
_LIMIT = (
    "(has(self.runPolicy) && has(self.runPolicy.pendingTimeoutSeconds) ? self.runPolicy.pendingTimeoutSeconds : "
    f"{PENDING_TIMEOUT})"
)


def _times(spec: JobSpec) -> tuple[list[int | None], int]:
    """Return the written times of the machines, and for how long the job may wait for all of them."""
    policy = spec.run_policy
    limit = policy.pending_timeout_seconds if policy else None
    machines = (spec.accelerator, *(spec.accelerator.alternatives or ()))
    return [each.try_for_seconds for each in machines], PENDING_TIMEOUT if limit is None else limit


def all_tried(spec: JobSpec) -> bool:
    # The wait for a queue's admission does not count.
    in_queue = spec.scheduling is not None and spec.scheduling.queue_name is not None
    return in_queue or spec.accelerator.alternatives is None or try_times.never_tried(*_times(spec)) is None


def untried(spec: JobSpec) -> tuple[str, str]:
    """Return the machine for which no time remains, with the sum and the limit, and a limit that suffices."""
    times, limit = _times(spec)
    index = try_times.never_tried(times, limit) or 0
    before = [each for each in (times if times[index] is None else times[:index]) if each is not None]
    machines = (spec.accelerator, *(spec.accelerator.alternatives or ()))
    name = f"{f'alternatives[{index - 1}]' if index else 'the first choice'} ({machines[index].type})"
    sum_ = f"{' + '.join(map(str, before))} = {sum(before)}" if len(before) > 1 else str(sum(before))
    found = f"{name} would never be tried: the others take {sum_} s, and the job may wait for {limit} s"
    step = f"Raise runPolicy.pendingTimeoutSeconds to {try_times.sufficient(times)}, or lower tryForSeconds."
    return found, step


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
        field="spec.accelerator.alternatives",
        cel="!has(self.accelerator.alternatives) || (has(self.scheduling) && has(self.scheduling.queueName)) || "
        f"{_LEAST} - ({_ALL_WRITTEN} ? {_LAST} : 0) <= {_LIMIT}",
        message="a sum of tryForSeconds that leaves time for each machine within runPolicy.pendingTimeoutSeconds "
        f"({PENDING_TIMEOUT} if absent), after which a job that never ran fails",
        next_step="Raise runPolicy.pendingTimeoutSeconds above the sum, or lower tryForSeconds.",
        holds=all_tried,
        explain=untried,
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

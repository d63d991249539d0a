"""Rules on the controller, the queue and the machines of a job together."""

from __future__ import annotations

import re

from mptraining_api.rules.rule import Rule
from mptraining_api.spec import MANAGED_BY_MULTIKUEUE, JobSpec

# As of a batch/v1 Job: a domain-prefixed path.
_CONTROLLER = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9/._~-]+$"


def _tried_in_time(spec: JobSpec) -> bool:
    tried, policy = spec.accelerator.try_for_seconds, spec.run_policy
    limit = policy.pending_timeout_seconds if policy else None
    return tried is None or limit is None or tried < limit


CAPACITY_RULES: tuple[Rule, ...] = (
    Rule(
        at="",
        field="spec.managedBy",
        cel=f"!has(self.spec.managedBy) || self.spec.managedBy.matches('{_CONTROLLER}')",
        message="a domain and a path, as kueue.x-k8s.io/multikueue or mptraining.dev/operator",
        next_step="Leave it out for this operator.",
        holds=lambda job: job.spec.managed_by is None or re.fullmatch(_CONTROLLER, job.spec.managed_by) is not None,
    ),
    Rule(
        at="spec",
        field="spec.scheduling.queueName",
        cel=f"!has(self.managedBy) || self.managedBy != '{MANAGED_BY_MULTIKUEUE}' || "
        "(has(self.scheduling) && has(self.scheduling.queueName))",
        message=f"a queue of MultiKueue together with managedBy: {MANAGED_BY_MULTIKUEUE}",
        next_step="Name the local queue, or leave managedBy out.",
        holds=lambda spec: (
            spec.managed_by != MANAGED_BY_MULTIKUEUE
            or (spec.scheduling is not None and spec.scheduling.queue_name is not None)
        ),
    ),
    Rule(
        at="spec",
        field="spec.accelerator.alternatives",
        cel=f"!has(self.managedBy) || self.managedBy != '{MANAGED_BY_MULTIKUEUE}' || "
        "!has(self.accelerator.alternatives)",
        message=f"none together with managedBy: {MANAGED_BY_MULTIKUEUE}, which sends the first choice alone",
        next_step="Leave out alternatives, or managedBy.",
        holds=lambda spec: spec.managed_by != MANAGED_BY_MULTIKUEUE or spec.accelerator.alternatives is None,
    ),
    Rule(
        at="spec",
        field="spec.accelerator.tryForSeconds",
        cel="!has(self.accelerator.tryForSeconds) || !has(self.runPolicy) || "
        "!has(self.runPolicy.pendingTimeoutSeconds) || "
        "self.accelerator.tryForSeconds < self.runPolicy.pendingTimeoutSeconds",
        message="less than runPolicy.pendingTimeoutSeconds, after which a job that never ran fails",
        next_step="Give less, or a longer pendingTimeoutSeconds for all machines.",
        holds=_tried_in_time,
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

"""Which accelerators a cluster's nodes have, and whether a job's are among them.

A cluster may make nodes when a pod asks for them (GKE's autoscaler starts at none), and a cluster that falls back to
the CPU needs none: so nodes that lack are a warning, never a refusal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from mptraining.cluster.api import NODES, ApiServer
from mptraining.cluster.errors import ClusterProblem
from mptraining.cluster.job_view import JobView, condition
from mptraining_api.accelerators import catalogue
from mptraining_api.resolved_job import ResolvedJob


def found(nodes: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Accelerator type -> number of nodes that say by their labels that they have it."""
    labels = {each.node_label for each in catalogue().values() if each.node_label}
    types: Counter[str] = Counter()
    for node in nodes:
        says = node.get("metadata", {}).get("labels") or {}
        types.update(says[label] for label in labels if label in says)
    return types


def missing(wanted: str, nodes: Iterable[Mapping[str, Any]]) -> str | None:
    """Words about an accelerator that no node has; None for those that some node has, and for CPUs."""
    accelerator = catalogue().get(wanted)
    if accelerator is None or accelerator.node_label is None:
        return None
    types = found(nodes)
    if types[wanted]:
        return None
    there = ", ".join(f"{name} ({count} node{'s' if count != 1 else ''})" for name, count in sorted(types.items()))
    choice = f"the cluster has {there}" if there else "no node of the cluster has an accelerator"
    return (
        f"no node has {wanted} now: {choice}. The job waits until one comes (an autoscaler may make it), "
        "or falls back to the CPU where the operator's settings say so"
    )


def lacking(server: ApiServer, job: ResolvedJob) -> tuple[str, ...]:
    """The warning for a job about to run there; none where nodes may not be listed."""
    if job.accelerator.kind == "cpu":
        return ()
    try:
        told = missing(job.accelerator.type, server.items(NODES))
    except ClusterProblem:
        # Most users may not list nodes; the operator says the same in the condition, a little later.
        return ()
    return (told,) if told else ()


def missing_for(server: ApiServer, seen: JobView) -> str | None:
    """The same for a job that waits for machines; None for one that does not, and where nodes may not be listed."""
    if seen.finished or seen.phase not in ("Pending", "Restarting") or condition(seen.status, "FellBackToCPU"):
        return None
    try:
        return missing(str((seen.spec.get("accelerator") or {}).get("type", "")), server.items(NODES))
    except ClusterProblem:
        return None

"""Affinity of an attempt's pods: the accelerator's machines, nodes to avoid, nearness of the workers, the job's own."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from mptraining_api.resolved_job import Placement

# The API server's maximum.
_LARGEST_WEIGHT = 100
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

Term = Mapping[str, Any]


def affinity(
    placement: Placement, given: Mapping[str, Any] | None, labels: Mapping[str, str], avoided_nodes: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the affinity of a pod, empty for none.

    `given` is that of podTemplate, to which the requirements of the placement are added; `labels` are those of the
    attempt's pods.
    """
    merged: dict[str, Any] = copy.deepcopy(dict(given or {}))
    if placement.node_affinity is not None:
        node = merged.setdefault("nodeAffinity", {})
        theirs = (node.get(_REQUIRED) or {}).get("nodeSelectorTerms")
        terms = list(placement.node_affinity) if theirs is None else _both(placement.node_affinity, theirs)
        node[_REQUIRED] = {"nodeSelectorTerms": terms}
    if avoided_nodes:
        node = merged.setdefault("nodeAffinity", {})
        others = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(avoided_nodes)}
        term = {"weight": _LARGEST_WEIGHT, "preference": {"matchExpressions": [others]}}
        node[_PREFERRED] = [term, *(node.get(_PREFERRED) or ())]
    if placement.pack_by is not None:
        # A preference: a gang that does not fit into one place trains across several. The nearest place weighs most.
        # The scheduler ignores a label that no node has.
        near = [
            {
                "weight": _LARGEST_WEIGHT // 2**distance,
                "podAffinityTerm": {"topologyKey": key, "labelSelector": {"matchLabels": dict(labels)}},
            }
            for distance, key in enumerate(placement.pack_by)
        ]
        pod = merged.setdefault("podAffinity", {})
        pod[_PREFERRED] = [*near, *(pod.get(_PREFERRED) or ())]
    return merged


def _both(first: Sequence[Term], second: Sequence[Term]) -> list[dict[str, Any]]:
    """Return the terms, of which one holds where one of each list holds: the requirements within a term all hold."""
    keys = ("matchExpressions", "matchFields")
    return [
        {key: [*(term.get(key) or ()), *(other.get(key) or ())] for key in keys if term.get(key) or other.get(key)}
        for term, other in itertools.product(first, second)
    ]

"""The platform: whose labels the nodes have (GKE, EKS, AKS, GPU feature discovery), and whether it assigns users."""

from __future__ import annotations

import logging
from dataclasses import replace

import msgspec

from mptraining_api.kubernetes_api import NODES, ApiProblem, Resource
from mptraining_api.machines.node_labels import MIG_STRATEGY, recognize
from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_operator.runtime.cluster import Cluster
from mptraining_operator.settings import OperatorSettings

_log = logging.getLogger(__name__)

# Nodes of one platform all have its labels, so that a few show it; a node is about 20 KB of JSON.
_NODES_READ = "50"
# OpenShift's, by which it assigns the user and the groups of a pod and refuses others.
_SECURITY_CONTEXT_CONSTRAINTS = Resource("security.openshift.io", "v1", "securitycontextconstraints", namespaced=False)


class NodePlatform:
    """Completes the settings of `resolve` with what the nodes show, where the operator's settings say Auto."""

    def __init__(self, cluster: Cluster, settings: OperatorSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        # The settings as completed; those of the last time if the nodes cannot be read.
        self.settings: ClusterSettings = settings.cluster()
        self.assigns_users = False

    def read(self) -> None:
        """Read some nodes."""
        self._read_users()
        settings = self._settings
        if settings.node_labels != "Auto" and settings.mig_strategy != "Auto":
            return
        try:
            # The nodes with slices may be a few of many.
            platform, strategy = recognize([*self._labels(), *self._labels(labelSelector=MIG_STRATEGY)])
        except ApiProblem as problem:
            _log.warning("the nodes cannot be read, whose labels show their platform: %s", problem)
            return
        completed = self.settings
        if settings.node_labels == "Auto" and platform is not None:
            completed = replace(completed, node_labels=platform)
        if settings.mig_strategy == "Auto" and strategy is not None:
            completed = replace(completed, mig_strategy=strategy)
        if completed != self.settings:
            _log.info("node labels of %s, MIG strategy %s", completed.node_labels, completed.mig_strategy)
        self.settings = completed

    def _read_users(self) -> None:
        try:
            self.assigns_users = self._cluster.serves(_SECURITY_CONTEXT_CONSTRAINTS)
        except ApiProblem as problem:
            _log.warning("the platform of the cluster cannot be read: %s", problem)

    def _labels(self, **selectors: str) -> list[dict[str, str]]:
        page, _ = next(self._cluster.pages(NODES, None, limit=_NODES_READ, **selectors))
        return [msgspec.json.decode(node)["metadata"].get("labels") or {} for node in page]

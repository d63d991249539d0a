"""APIs for gangs that the API server serves, from its discovery, which changes when a CustomResourceDefinition does."""

from __future__ import annotations

import threading
from collections.abc import Callable

from mptraining_api.kubernetes_api import Resource
from mptraining_operator.cluster import Cluster
from mptraining_operator.resources.pod_groups import PodGroupApi

# Seconds for which a result is used.
_VALID = 60.0


def resource(api: PodGroupApi) -> Resource:
    """Return the resource type of the API's objects."""
    return Resource(api.group, api.version, api.plural)


class GangApis:
    """Discovery with a cache. Thread-safe; `clock` is in seconds."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[PodGroupApi, tuple[float, bool]] = {}

    def serves(self, api: PodGroupApi) -> bool:
        """Return whether the API server serves it. Raises ApiProblem."""
        with self._lock:
            read_at, found = self._known.get(api, (None, False))
        if read_at is not None and self._clock() < read_at + _VALID:
            return found
        found = self._cluster.serves(resource(api))
        with self._lock:
            self._known[api] = (self._clock(), found)
        return found

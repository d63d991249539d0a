"""Objects that the jobs of a namespace share: one headless Service for host names, and one NetworkPolicy.

Neither has an owner: the garbage collector would delete the policy with a job whose workers still save for their grace
period.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from mptraining_api.kubernetes_api import NETWORK_POLICIES, SERVICES, ApiProblem, Raw, Resource
from mptraining_operator.jobs.resources import job_objects, names
from mptraining_operator.runtime.cluster import Cluster

_log = logging.getLogger(__name__)

# Seconds after which the objects of a namespace are read again before a start: the namespace may have been deleted
# and created again.
_CHECK_SECONDS = 60.0
# The fields that must be as the operator wrote them; the API server adds defaults to others.
_COMPARED = ("selector", "clusterIP", "publishNotReadyAddresses", "podSelector", "policyTypes", "ingress")


class NamespaceObjects:
    """Creates and repairs the objects. Thread-safe. `clock` is monotonic, in seconds."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._lock = threading.Lock()
        self._checked: dict[str, float] = {}

    def ensure(self, namespace: str, *, again: bool = False) -> None:
        """Create or repair the objects of the namespace, if they were not checked within a minute or `again` is set.

        Raises ApiProblem; 409 if another client's object has the name.
        """
        with self._lock:
            checked = self._checked.get(namespace)
            if checked is not None and self._clock() < checked + _CHECK_SECONDS and not again:
                return
            # One thread reads them; jobs that other threads start meanwhile need them only when their pods run.
            self._checked[namespace] = self._clock()
        try:
            self._put(SERVICES, namespace, job_objects.service(namespace))
            self._put(NETWORK_POLICIES, namespace, job_objects.network_policy(namespace))
        except BaseException:
            with self._lock:
                self._checked.pop(namespace, None)
            raise

    def _put(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> None:
        """Create the object, or replace the operator's own if it differs. Raises ApiProblem."""
        name = body["metadata"]["name"]
        try:
            self._cluster.create(resource, namespace, body)
            return
        except ApiProblem as problem:
            if problem.status != 409:
                raise
            conflict = problem
        stored: Raw = self._cluster.get(resource, namespace, name)
        if _same(stored, body):
            return
        if stored["metadata"].get("labels", {}).get(names.MANAGED_BY) != names.OPERATOR:
            message = f"{body['kind']} {name} exists already and is not the operator's. Delete or rename it"
            raise ApiProblem(409, "AlreadyExists", message) from conflict
        _log.warning("%s %s/%s was changed by another client and is repaired", body["kind"], namespace, name)
        version = {"resourceVersion": stored["metadata"]["resourceVersion"]}
        self._cluster.replace(resource, namespace, name, {**body, "metadata": {**body["metadata"], **version}})


def _same(stored: Mapping[str, Any], body: Mapping[str, Any]) -> bool:
    """Return whether the object is as the operator writes it."""
    spec, written = stored.get("spec", {}), body["spec"]
    return all(spec.get(field) == written.get(field) for field in _COMPARED)

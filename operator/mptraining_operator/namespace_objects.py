"""Objects that the jobs of a namespace share, and the rules that let the workers of one job reach each other.

Each namespace with jobs has one headless Service for host names and one NetworkPolicy that denies all ingress to
workers. A job of several workers has another NetworkPolicy that allows its own. None of them has an owner: the garbage
collector would delete the policies with the job, while its workers still run and save for their grace period.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from mptraining_api.kubernetes_api import NETWORK_POLICIES, SERVICES, ApiProblem, Raw, Resource
from mptraining_operator.cluster import Cluster
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.resources import job_objects, names

_log = logging.getLogger(__name__)

# Seconds after which the objects of a namespace are read again before a start: the namespace may have been deleted
# and created again.
_CHECK_SECONDS = 60.0
_SELECTOR = f"{names.MANAGED_BY}={names.OPERATOR}"
# The fields that must be as the operator wrote them; the API server adds defaults to others.
_COMPARED = ("selector", "clusterIP", "publishNotReadyAddresses", "podSelector", "policyTypes", "ingress")


class NamespaceObjects:
    """Creates, repairs and deletes the objects. Thread-safe. `clock` is monotonic, in seconds.

    Methods raise ApiProblem; 409 if another client's object has the name.
    """

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._lock = threading.Lock()
        self._checked: dict[str, float] = {}
        # The uid of the job that each NetworkPolicy allows.
        self._allowed: dict[Key, str] = {}
        # What was written since `refresh` began to read: its lists may not have it.
        self._written: dict[Key, str | None] = {}

    def ensure(self, namespace: str) -> None:
        """Create or repair the Service and the denying NetworkPolicy of the namespace."""
        with self._lock:
            checked = self._checked.get(namespace)
            if checked is not None and self._clock() < checked + _CHECK_SECONDS:
                return
            # One thread reads them; jobs that other threads start meanwhile need them only when their pods run.
            self._checked[namespace] = self._clock()
        try:
            self._put(SERVICES, namespace, job_objects.service(namespace))
            self._put(NETWORK_POLICIES, namespace, job_objects.deny_policy(namespace))
        except BaseException:
            with self._lock:
                self._checked.pop(namespace, None)
            raise

    def allow(self, key: Key, uid: str) -> None:
        """Allow the workers of the job to reach each other."""
        with self._lock:
            if self._allowed.get(key) == uid:
                return
        self._put(NETWORK_POLICIES, key.namespace, job_objects.allow_policy(key.namespace, key.name, uid))
        with self._lock:
            self._allowed[key] = self._written[key] = uid

    def remove(self, key: Key) -> None:
        """Delete the rule of a deleted job whose workers have terminated."""
        with self._lock:
            allowed = self._allowed.pop(key, None)
            if allowed is None:
                return
            self._written[key] = None
        name = names.network_policy(key.name)
        try:
            found = self._cluster.get(NETWORK_POLICIES, key.namespace, name)
            if found["metadata"].get("labels", {}).get(names.JOB_UID) == allowed:
                uid = found["metadata"]["uid"]
                self._cluster.delete(NETWORK_POLICIES, key.namespace, name, uid=uid, propagation="Background")
        except ApiProblem as problem:
            if problem.status not in (404, 409):
                with self._lock:
                    self._written[key] = self._allowed.setdefault(key, allowed)
                raise

    def refresh(self, namespaces: Iterable[str | None]) -> Mapping[Key, str]:
        """Read all rules and shared objects; return the uid of the job that each intact rule allows.

        Afterwards `allow` and `ensure` write only what is missing or was changed. A namespace that cannot be read keeps
        what is known of it.
        """
        listed: dict[Key, str] = {}
        began = self._clock()
        with self._lock:
            self._written.clear()
        intact: dict[Resource, set[str]] = {SERVICES: set(), NETWORK_POLICIES: set()}
        for namespace in namespaces:
            try:
                self._read(namespace, listed, intact)
            except ApiProblem as problem:
                if namespace is None:
                    raise
                _log.warning("Services and NetworkPolicies of namespace %s cannot be read: %s", namespace, problem)
                with self._lock:
                    listed |= {key: uid for key, uid in self._allowed.items() if key.namespace == namespace}
        with self._lock:
            current = {**listed, **self._written}
            allowed = {key: uid for key, uid in current.items() if uid is not None}
            self._allowed = allowed
            self._checked = dict.fromkeys(intact[SERVICES] & intact[NETWORK_POLICIES], began)
        return dict(allowed)

    def _read(self, namespace: str | None, listed: dict[Key, str], intact: Mapping[Resource, set[str]]) -> None:
        for resource, whole in intact.items():
            for items, _ in self._cluster.pages(resource, namespace, labelSelector=_SELECTOR):
                for found in map(msgspec.json.decode, items):
                    metadata = found["metadata"]
                    where, labels = metadata["namespace"], metadata.get("labels", {})
                    if resource == NETWORK_POLICIES and names.JOB in labels:
                        key, uid = Key(where, labels[names.JOB]), labels.get(names.JOB_UID, "")
                        if _same(found, job_objects.allow_policy(where, key.name, uid)):
                            listed[key] = uid
                    elif names.JOB not in labels and _same(found, _shared(resource, where)):
                        whole.add(where)

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
        found: Raw = self._cluster.get(resource, namespace, name)
        if _same(found, body):
            return
        if found["metadata"].get("labels", {}).get(names.MANAGED_BY) != names.OPERATOR:
            message = f"{body['kind']} {name} exists already and is not the operator's. Delete or rename it"
            raise ApiProblem(409, "AlreadyExists", message) from conflict
        _log.warning("%s %s/%s was changed by another client and is repaired", body["kind"], namespace, name)
        version = {"resourceVersion": found["metadata"]["resourceVersion"]}
        self._cluster.replace(resource, namespace, name, {**body, "metadata": {**body["metadata"], **version}})


def _shared(resource: Resource, namespace: str) -> dict[str, Any]:
    return job_objects.service(namespace) if resource == SERVICES else job_objects.deny_policy(namespace)


def _same(found: Mapping[str, Any], body: Mapping[str, Any]) -> bool:
    """Return whether the object is as the operator writes it."""
    spec, wanted = found.get("spec", {}), body["spec"]
    return all(spec.get(field) == wanted.get(field) for field in _COMPARED)

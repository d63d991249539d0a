"""Objects that the attempts of a job share, ConfigMap and ResourceClaimTemplate, and those that all jobs of a namespace
share, Service and NetworkPolicy.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from mptraining_api.launch import TRAINER_PORT
from mptraining_api.spec import API_VERSION, KIND
from mptraining_api.status import config_map_name
from mptraining_operator.jobs.resources import names

# The key in the ConfigMap and the file name in the mount.
JOB_FILE = "job.json"


@dataclass(frozen=True, slots=True)
class Owner:
    """The MPTrainingJob that owns the children."""

    namespace: str
    name: str
    uid: str
    # Its metadata.creationTimestamp.
    created: str


def metadata(owner: Owner, name: str, labels: dict[str, str]) -> dict[str, Any]:
    """Return the metadata of a job's child."""
    references = [owner_reference(KIND, owner.name, owner.uid)]
    return {"name": name, "namespace": owner.namespace, "labels": labels, "ownerReferences": references}


def owner_reference(kind: str, name: str, uid: str) -> dict[str, Any]:
    """Return the reference to the controller of a child, with which Kubernetes deletes it."""
    owner = {"apiVersion": API_VERSION, "kind": kind, "name": name, "uid": uid}
    return {**owner, "controller": True, "blockOwnerDeletion": True}


def claim_template(owner: Owner, device_class: str, count: int) -> dict[str, Any]:
    """Build the template from which Kubernetes creates the ResourceClaim of each worker, for `count` whole devices.

    Its spec is immutable, so that its name has a digest of it.
    """
    exactly = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count}
    name = names.claim_template(owner.name, hashlib.sha256(f"{device_class} {count}".encode()).hexdigest())
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": metadata(owner, name, _labels(owner)),
        "spec": {"spec": {"devices": {"requests": [{"name": names.CLAIM, "exactly": exactly}]}}},
    }


def config_map(owner: Owner, text: str) -> dict[str, Any]:
    """Build the immutable ConfigMap with the resolved job's text, which the pods of all attempts mount."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(owner, config_map_name(owner.name), _labels(owner)),
        "immutable": True,
        "data": {JOB_FILE: text},
    }


def job_digest(text: str) -> str:
    """Return the SHA-256 of a resolved job's text in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def service(namespace: str) -> dict[str, Any]:
    """Build the namespace's headless Service, which resolves the host name of each worker with peers to its pod.

    It publishes pods that are not ready: workers connect to each other before any of them is ready.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _shared(namespace, names.SERVICE),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.PEERS: "true"},
            "ports": [{"name": "trainer", "port": TRAINER_PORT, "protocol": "TCP"}],
        },
    }


def network_policy(namespace: str) -> dict[str, Any]:
    """Build the NetworkPolicy that allows ingress to the workers of the namespace from its workers only.

    TensorFlow's gRPC servers execute any graph without authentication (TensorFlow's SECURITY.md). All ports are
    allowed, because NCCL and TPU meshes choose theirs. Egress is unrestricted, because buckets are outside the cluster.
    """
    workers = {"podSelector": {"matchExpressions": [{"key": names.JOB, "operator": "Exists"}]}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _shared(namespace, names.NETWORK_POLICY),
        "spec": {**workers, "policyTypes": ["Ingress"], "ingress": [{"from": [workers]}]},
    }


def _shared(namespace: str, name: str) -> dict[str, Any]:
    """Return the metadata of an object without an owner."""
    return {"name": name, "namespace": namespace, "labels": {names.MANAGED_BY: names.OPERATOR}}


def _labels(owner: Owner) -> dict[str, str]:
    return {**names.job_labels(owner.name, owner.uid), names.MANAGED_BY: names.OPERATOR}

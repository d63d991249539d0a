"""Objects that all attempts of a job share: ConfigMap, headless Service and NetworkPolicy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mptraining_api.launch import TRAINER_PORT
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import API_VERSION, KIND
from mptraining_api.status import config_map_name
from mptraining_operator.resources import names

# The key in the ConfigMap and the file name in its mount.
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
    """Return a child's metadata; its owner reference makes Kubernetes delete it with the job."""
    reference = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {"name": name, "namespace": owner.namespace, "labels": labels, "ownerReferences": [reference]}


def config_map(owner: Owner, job: ResolvedJob) -> dict[str, Any]:
    """Build the ConfigMap of the resolved job: immutable, so that no edit or operator upgrade changes a running job."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(owner, config_map_name(owner.name), _labels(owner)),
        "immutable": True,
        "data": {JOB_FILE: job.to_json()},
    }


def service(owner: Owner) -> dict[str, Any]:
    """Build the headless Service that resolves each worker's host name to its pod.

    It publishes pods that are not ready: workers connect to each other before any of them is ready.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(owner, names.service(owner.name), _labels(owner)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.job_labels(owner.name, owner.uid),
            "ports": [{"name": "trainer", "port": TRAINER_PORT, "protocol": "TCP"}],
        },
    }


def network_policy(owner: Owner) -> dict[str, Any]:
    """Build the NetworkPolicy that allows ingress only from the job's own pods.

    TensorFlow's gRPC servers execute any graph without authentication (TensorFlow's SECURITY.md). All ports are
    allowed, because NCCL and TPU meshes choose theirs. Egress is unrestricted, because buckets are outside the cluster.
    """
    own_pods = {"podSelector": {"matchLabels": names.job_labels(owner.name, owner.uid)}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(owner, names.network_policy(owner.name), _labels(owner)),
        "spec": {**own_pods, "policyTypes": ["Ingress"], "ingress": [{"from": [own_pods]}]},
    }


def _labels(owner: Owner) -> dict[str, str]:
    return {**names.job_labels(owner.name, owner.uid), names.MANAGED_BY: names.OPERATOR}

"""What a job has once, for all its attempts: ConfigMap, Service, NetworkPolicy, as the API server takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mptraining_api.launch import TRAINER_PORT
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import API_VERSION, KIND
from mptraining_operator.resources import names

# The file of the ConfigMap, and so of the folder it is mounted as.
JOB_FILE = "job.json"


@dataclass(frozen=True, slots=True)
class Owner:
    """The MPTrainingJob whose children they are."""

    namespace: str
    name: str
    uid: str


def metadata(owner: Owner, name: str, labels: dict[str, str]) -> dict[str, Any]:
    """Of a child: Kubernetes collects it when its owner is gone."""
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
    """The frozen job: immutable, so that neither a hand nor an operator upgrade changes a running job."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(owner, names.config_map(owner.name), _labels(owner)),
        "immutable": True,
        "data": {JOB_FILE: job.to_json()},
    }


def service(owner: Owner) -> dict[str, Any]:
    """Headless: each worker's host name leads to its pod.

    To pods that are not ready too: workers look for each other before any of them is.
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
    """Lets the job's own pods reach one another, and nobody else reach them.

    TensorFlow's gRPC runs any graph that anybody sends, unauthenticated (its SECURITY.md). All ports, because
    NCCL and TPU meshes choose theirs. What the pods themselves reach stays open: buckets are outside.
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

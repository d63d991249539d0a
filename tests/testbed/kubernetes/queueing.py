"""A simulated queue: changes the Jobs that are labelled for it as Kueue changes them, in Kueue's order.

Kueue 0.14 (its pkg/controller/jobs/job and pkg/podset) admits a Job by one change of its spec: `suspend` and the
flavor's settings for the pods. It preempts a Job by three: it sets `suspend`, then removes `status.startTime`, without
which the API server accepts no change of the template, then restores the template. The test decides which Job and when.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.testbed.kubernetes.access import apply_crd
from tests.testbed.kubernetes.rest import JSON_PATCH, Object, Refused, Rest

QUEUE_NAME = "kueue.x-k8s.io/queue-name"
_STOPPING = "kueue.x-k8s.io/stopping"
_PODSET = "kueue.x-k8s.io/podset"
_WORKLOAD = "kueue.x-k8s.io/workload"
_CONFLICTS = 100


# Kueue's definition as far as its clients need it.
_LOCAL_QUEUES: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "localqueues.kueue.x-k8s.io", "annotations": {"api-approved.kubernetes.io": "unapproved"}},
    "spec": {
        "group": "kueue.x-k8s.io",
        "names": {"kind": "LocalQueue", "plural": "localqueues", "singular": "localqueue"},
        "scope": "Namespaced",
        "versions": [
            {"name": "v1beta1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
        ],
    },
}


def _local_queue(name: str) -> Object:
    return {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "LocalQueue", "metadata": {"name": name}}


@dataclass(frozen=True)
class Flavor:
    """Kueue's ResourceFlavor: the nodes on which a Job may run, and the taints they have."""

    node_labels: Mapping[str, str]
    tolerations: Sequence[Mapping[str, Any]] = field(default=())


class Queue:
    """The local queue `name` of one namespace."""

    def __init__(self, rest: Rest, namespace: str, name: str) -> None:
        self._rest = rest
        apply_crd(rest, _LOCAL_QUEUES)
        rest.post(f"/apis/kueue.x-k8s.io/v1beta1/namespaces/{namespace}/localqueues", _local_queue(name))
        self._path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        self._name = name
        # Templates before admission, by the Job's uid: Kueue keeps them in a Workload.
        self._templates: dict[str, Object] = {}

    def pending(self) -> list[str]:
        """Return the names of the Jobs that wait, oldest first: suspended, and without a running pod."""
        listed = self._rest.get(self._path, {"labelSelector": f"{QUEUE_NAME}={self._name}"})["items"]
        waiting = [each for each in listed if each["spec"].get("suspend") and not each["status"].get("active")]
        return [each["metadata"]["name"] for each in sorted(waiting, key=_age)]

    def admit(self, job: str, flavor: Flavor) -> None:
        """Resume it on the nodes of that flavor. Raises Refused when the API server refuses the change, ValueError
        for a node label that conflicts with the Job's own, which Kueue would refuse.
        """
        _retry(lambda: self._admit(job, flavor))

    def _admit(self, job: str, flavor: Flavor) -> None:
        found = self._rest.get(f"{self._path}/{job}")
        template = found["spec"]["template"]
        self._templates[found["metadata"]["uid"]] = copy.deepcopy(template)
        wanted = template["spec"].get("nodeSelector", {})
        conflicts = [key for key, value in flavor.node_labels.items() if wanted.get(key, value) != value]
        if conflicts:
            raise ValueError(f"Job {job} wants other nodes than the flavor's: {', '.join(conflicts)}")
        have = template["spec"].get("tolerations", [])
        more = [dict(toleration) for toleration in flavor.tolerations if toleration not in have]
        change = {
            "metadata": {"labels": {_PODSET: "main"}, "annotations": {_WORKLOAD: f"job-{job}"}},
            "spec": {"nodeSelector": {**wanted, **flavor.node_labels}, "tolerations": [*have, *more]},
        }
        self._patch(found, {"spec": {"suspend": False, "template": change}})

    def preempt(self, job: str) -> None:
        """Preempt it: its pods are deleted, the Job is neither failed nor complete, and is pending again."""
        found = self._rest.get(f"{self._path}/{job}")
        before = self._templates[found["metadata"]["uid"]]
        _retry(lambda: self._stop(job))
        path = f"{self._path}/{job}"
        self._rest.patch(f"{path}/status", {"status": {"startTime": None}})
        done = _STOPPING.replace("/", "~1")
        restore = [
            {"op": "replace", "path": "/spec/template", "value": before},
            {"op": "remove", "path": f"/metadata/annotations/{done}"},
        ]
        # Since Kubernetes 1.36 the template may change once the Job's controller has counted no active pods.
        _retry(lambda: self._rest.patch(path, restore, kind=JSON_PATCH), codes=(409, 422))

    def _stop(self, job: str) -> None:
        found = self._rest.get(f"{self._path}/{job}")
        self._patch(found, {"metadata": {"annotations": {_STOPPING: "true"}}, "spec": {"suspend": True}})

    def _patch(self, found: Object, change: Object) -> None:
        """Patch the Job. Refused with 409 when another client has changed it since, as in Kueue."""
        metadata = {**change.get("metadata", {}), "resourceVersion": found["metadata"]["resourceVersion"]}
        self._rest.patch(f"{self._path}/{found['metadata']['name']}", {**change, "metadata": metadata})


def _retry(change: Callable[[], object], *, codes: Sequence[int] = (409,)) -> None:
    """Retry as Kueue does when another client, often the Job's controller, wrote the Job between its read and its
    write.
    """

    for left in reversed(range(_CONFLICTS)):
        try:
            change()
        except Refused as refused:
            if refused.code not in codes or not left:
                raise
            time.sleep(0.1)
        else:
            return


def _age(job: Object) -> tuple[str, str]:
    return job["metadata"]["creationTimestamp"], job["metadata"]["name"]

"""PodGroup of an attempt, by which a scheduler places all workers or none, in the API of each scheduler that has one.

The Indexed Job owns it, so that Kubernetes deletes it with the attempt. It is created after the Job: until it exists
the schedulers leave pods that name it without a node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mptraining_api.spec import Scheduling
from mptraining_operator.jobs.resources import names
from mptraining_operator.jobs.resources.job_objects import Owner

# The name of the default queue's override, as on pods without a PodGroup (volcano.sh/apis, v1beta1/labels.go).
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
_VOLCANO_SCHEDULER = "volcano"


@dataclass(frozen=True, slots=True)
class PodGroupApi:
    """An API for gangs: the value of spec.scheduling.gang, and the type of its objects."""

    gang: str
    group: str
    version: str
    kind: str
    plural: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}"


COSCHEDULING = PodGroupApi("Coscheduling", "scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups")
VOLCANO = PodGroupApi("Volcano", "scheduling.volcano.sh", "v1beta1", "PodGroup", "podgroups")
APIS = (COSCHEDULING, VOLCANO)


@dataclass(frozen=True, slots=True)
class Gang:
    """The API of an attempt's PodGroup, and the schedulerName of its pods; None: the cluster's default."""

    api: PodGroupApi
    scheduler: str | None


class GangNotServed(Exception):
    """The cluster does not serve the API that the job asks for."""


def by_api_version(api_version: str) -> PodGroupApi | None:
    """Return the API of an Indexed Job's annotation; None if this version does not know it."""
    return next((api for api in APIS if api.api_version == api_version), None)


def choose(
    scheduling: Scheduling,
    workers: int,
    *,
    coscheduling: str | None,
    volcano: str | None,
    serves: Callable[[PodGroupApi], bool],
) -> Gang | None:
    """Return the gang of an attempt, or None. `coscheduling` and `volcano` are the schedulers of the settings.

    Raises GangNotServed.
    """
    gang, given = scheduling.gang or "Auto", scheduling.scheduler_name
    if workers < 2 or scheduling.queue_name is not None or gang == "None":
        return None
    for api, known in ((COSCHEDULING, coscheduling), (VOLCANO, volcano)):
        # Auto uses a scheduler that is known to read the PodGroups: without one the pods would wait forever.
        usable = known is not None and given in (None, known)
        if (gang == api.gang or (gang == "Auto" and usable)) and serves(api):
            return Gang(api, given or known or (_VOLCANO_SCHEDULER if api == VOLCANO else None))
    if gang == "Auto":
        return None
    (api,) = (candidate for candidate in APIS if candidate.gang == gang)
    missing = f"{api.plural}.{api.group}/{api.version}"
    raise GangNotServed(f"spec.scheduling.gang: {gang}: this cluster does not serve {missing}")


def pod_labels(gang: Gang | None, name: str) -> dict[str, str]:
    return {"scheduling.x-k8s.io/pod-group": name} if gang and gang.api == COSCHEDULING else {}


def pod_annotations(gang: Gang | None, name: str) -> dict[str, str]:
    return {"scheduling.k8s.io/group-name": name} if gang and gang.api == VOLCANO else {}


def pod_fields(gang: Gang | None) -> dict[str, Any]:
    """Return the fields of a pod's spec by which the gang's scheduler places it."""
    return {"schedulerName": gang.scheduler} if gang and gang.scheduler else {}


def pod_group(
    owner: Owner, api: PodGroupApi, batch_job: str, uid: str, attempt: int, *, workers: int, queue: str, priority: str
) -> dict[str, Any]:
    """Build the PodGroup of the Indexed Job `batch_job` with that uid. `queue` is Volcano's, empty for its default.

    The owner reference does not block the deletion of the Job: where the API server checks who may set that (OpenShift
    does), it would need another right.
    """
    volcano = {name: value for name, value in {"queue": queue, "priorityClassName": priority}.items() if value}
    return {
        "apiVersion": api.api_version,
        "kind": api.kind,
        "metadata": {
            "name": batch_job,
            "namespace": owner.namespace,
            "labels": names.attempt_labels(owner.name, owner.uid, attempt),
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": batch_job, "uid": uid, "controller": True}
            ],
        },
        "spec": {"minMember": workers, **(volcano if api == VOLCANO else {})},
    }

"""Probe of an elastic job: a Job whose pods ask for the machines with which the job would grow, and do nothing.

Each pod needs what a worker needs (node selector, tolerations, affinity, resources, priority, claims) and has the
worker's image, which the machine then has. Its labels are none of a worker's, so that it belongs to no attempt.
"""

from __future__ import annotations

import copy
from typing import Any

from mptraining_api.pods.fields import PodTemplate
from mptraining_api.resolved_job import ResolvedJob
from mptraining_operator.jobs.resources import names
from mptraining_operator.jobs.resources.environment import PodSettings
from mptraining_operator.jobs.resources.indexed_job import indexed_job
from mptraining_operator.jobs.resources.job_objects import Owner, metadata
from mptraining_operator.jobs.resources.queue_job import Admitted, with_admission

# Fields that the placement of a worker, admission and the image depend on.
_POD_FIELDS = (
    *("nodeSelector", "tolerations", "affinity", "priorityClassName", "schedulerName", "runtimeClassName"),
    *("securityContext", "imagePullSecrets", "serviceAccountName", "resources", "resourceClaims", "enableServiceLinks"),
)
_CONTAINER_FIELDS = ("image", "resources", "securityContext")
_WAIT = "import signal; signal.pause()"


def capacity_probe(
    owner: Owner,
    job: ResolvedJob,
    *,
    machine: int,
    pods: int,
    settings: PodSettings,
    admitted: Admitted | None = None,
) -> dict[str, Any]:
    """Build the Job of `pods` pods for the frozen job.

    `admitted` is the job's place in its queue, whose quota has the probe's pods.

    Raises InvalidSpec as `indexed_job`.
    """
    attempt = indexed_job(owner, job, attempt=0, settings=settings, machine=machine)["spec"]["template"]["spec"]
    worker = attempt["containers"][0]
    container = {
        "name": "probe",
        "command": [worker["command"][0], "-c", _WAIT],
        **{name: worker[name] for name in _CONTAINER_FIELDS if name in worker},
    }
    # They run with a worker: a machine must have room for both.
    sidecars = [init for init in attempt.get("initContainers", ()) if init.get("restartPolicy") == "Always"]
    pauses = [
        {**container, "name": f"probe-{number}", "resources": sidecar.get("resources", {})}
        for number, sidecar in enumerate(sidecars, start=1)
    ]
    template = job.pod_template or PodTemplate()
    # A claim may bind a pod to a zone.
    claims = [volume for volume in template.volumes or () if "persistentVolumeClaim" in volume]
    labels = names.attempt_labels(owner.name, owner.uid, names.PROBE_ATTEMPT)
    built = copy.deepcopy(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata(owner, names.probe(owner.name), labels),
            "spec": {
                "parallelism": pods,
                "completions": pods,
                # A pod that is evicted ends the probe, which is created again after resizeSeconds.
                "backoffLimit": 0,
                "template": {
                    "metadata": {"labels": {**(template.labels or {}), names.MANAGED_BY: names.OPERATOR}},
                    "spec": {
                        **{name: attempt[name] for name in _POD_FIELDS if name in attempt},
                        "restartPolicy": "Never",
                        "automountServiceAccountToken": False,
                        # The workers of the next attempt take its machines at once.
                        "terminationGracePeriodSeconds": 0,
                        "containers": [container, *pauses],
                        **({"volumes": claims} if claims else {}),
                    },
                },
            },
        }
    )
    return built if admitted is None else with_admission(built, admitted)

"""The Indexed Job of one attempt: one pod for each worker, the same template for all.

Who decides a field of the pod, the first that has something to say:

    1. the operator     command, security, restart policy, volumes named mptraining-*, MPTRAINING_*; the accelerator's
                        selector, resource and tolerations, as the resolved job says; its own labels and annotations
    2. the job          what `spec.podTemplate` and `spec.scheduling` list
    3. the settings     proxies, authorities, pull secrets, priority class, labels
    4. the defaults     HOME, TF_CPP_MIN_LOG_LEVEL and the like; 250m CPU and 512Mi of memory requested, so that no pod
                        is BestEffort, which the kubelet evicts first

Lists and maps are joined: the job's node selector, tolerations, labels, annotations, volumes and mounts stand beside
the operator's. Rules refuse what would contradict; `mounts` refuses collisions. Of two tolerations for a lost node
Kubernetes takes the shorter, so that a job cannot make its pods stay there for ever.
"""

from __future__ import annotations

import copy
from typing import Any

from mptraining_api.launch import SOURCE_COMMAND, TRAINER_PORT, launch
from mptraining_api.problems import InvalidSpec
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import JobSpec, PodTemplate, Scheduling
from mptraining_operator.resources import names
from mptraining_operator.resources.environment import PodSettings, init_environment, secret_sources, trainer_environment
from mptraining_operator.resources.shared import JOB_FILE, Owner, metadata
from mptraining_operator.resources.volumes import JOB_FOLDER, own_mounts, own_volumes, refuse_collisions, source_parts

QUEUE = "kueue.x-k8s.io/queue-name"
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
# The user of the images.
USER = 1000
DEFAULT_REQUESTS = {"cpu": "250m", "memory": "512Mi"}

_LOST_NODE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
_POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    # A volume of a million records is not to be walked through at every start.
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}


def indexed_job(
    owner: Owner, job: ResolvedJob, spec: JobSpec, *, attempt: int, settings: PodSettings
) -> dict[str, Any]:
    """The Job of one attempt. It is never changed afterwards: a queue may own its `suspend` and its placement.

    Raises InvalidSpec for what the job says of its pods and cannot be.
    """
    scheduling = spec.scheduling or Scheduling()
    labels = names.attempt_labels(owner.name, owner.uid, attempt)
    queue = {QUEUE: scheduling.queue_name} if scheduling.queue_name else {}
    built = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        # No time to live: the operator deletes it, and Kueue's preemption breaks with one (kueue#2923).
        "metadata": metadata(owner, names.batch_job(owner.name, attempt), labels | queue),
        "spec": {
            "completionMode": "Indexed",
            "completions": job.processes,
            "parallelism": job.processes,
            # The workers are one gang: the first that fails ends the attempt, and nothing replaces a single one. With
            # this limit, other than with backoffLimit, pods, logs and exit codes stay.
            "backoffLimitPerIndex": 0,
            "maxFailedIndexes": 0,
            "podReplacementPolicy": "Failed",
            # Without the rule a pod that was disrupted would be replaced under the gang's feet.
            "podFailurePolicy": {
                "rules": [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
            },
            **({"suspend": True} if queue else {}),
            "template": _template(owner, job, spec, scheduling, attempt, settings),
        },
    }
    # Nothing of it is shared with the job's frozen spec or with the next attempt.
    return copy.deepcopy(built)


def _template(
    owner: Owner, job: ResolvedJob, spec: JobSpec, scheduling: Scheduling, attempt: int, settings: PodSettings
) -> dict[str, Any]:
    asked = spec.pod_template or PodTemplate()
    priority = scheduling.priority_class_name or settings.priority_class_name
    return {
        "metadata": {
            "labels": {
                **settings.labels,
                **(asked.labels or {}),
                **names.attempt_labels(owner.name, owner.uid, attempt),
            },
            # To move one worker costs the whole gang a restart, and a node saved is not worth that.
            "annotations": {**(asked.annotations or {}), SAFE_TO_EVICT: "false"},
        },
        "spec": {
            "restartPolicy": "Never",
            "subdomain": names.service(owner.name),
            "terminationGracePeriodSeconds": settings.grace_seconds,
            "securityContext": _POD_SECURITY,
            # The variables of every Service of the namespace: thousands, and names that collide.
            "enableServiceLinks": False,
            **_service_account(asked),
            **_pull_secrets(asked, settings),
            **({"priorityClassName": priority} if priority else {}),
            **({"schedulerName": scheduling.scheduler_name} if scheduling.scheduler_name else {}),
            **_placement(owner, job, asked, attempt, settings),
            **_containers(owner, job, asked, attempt, settings),
        },
    }


def _service_account(asked: PodTemplate) -> dict[str, Any]:
    """No token of the Kubernetes API, unless the job names an account that has not said no to one itself.

    The account's own `automountServiceAccountToken` counts only where the pod says nothing. Google's credentials need
    no token in the pod: GKE's metadata server hands them to whatever account the pod has.
    """
    name = asked.service_account_name
    return {"serviceAccountName": name} if name else {"automountServiceAccountToken": False}


def _pull_secrets(asked: PodTemplate, settings: PodSettings) -> dict[str, Any]:
    secrets = list(asked.image_pull_secrets or ())
    secrets += [each for name in settings.image_pull_secrets if (each := {"name": name}) not in secrets]
    return {"imagePullSecrets": secrets} if secrets else {}


def _placement(
    owner: Owner, job: ResolvedJob, asked: PodTemplate, attempt: int, settings: PodSettings
) -> dict[str, Any]:
    lost = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": settings.unreachable_seconds}
        for key in _LOST_NODE
    ]
    selector = {**(asked.node_selector or {}), **job.placement.node_selector}
    tolerations = [*job.placement.tolerations, *lost]
    tolerations += [each for each in asked.tolerations or () if each not in tolerations]
    result: dict[str, Any] = {"nodeSelector": selector} if selector else {}
    result["tolerations"] = tolerations
    if job.processes > 1 and job.accelerator.kind != "tpu":
        # A wish: one machine with room for all is better than waiting. A TPU host has room for one pod only.
        labels = names.attempt_labels(owner.name, owner.uid, attempt)
        result["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": labels},
            }
        ]
    return result


def _containers(
    owner: Owner, job: ResolvedJob, asked: PodTemplate, attempt: int, settings: PodSettings
) -> dict[str, Any]:
    source = source_parts(job)
    hosts = names.hosts(owner.name, owner.namespace, attempt, job.processes)
    launched = launch(job, hosts=hosts, job_path=f"{JOB_FOLDER}/{JOB_FILE}", attempt=attempt)
    reported = settings.progress_url is not None
    trusted = settings.authorities is not None
    mounts = [*own_mounts(token=reported, authorities=trusted), *source.trainer_mounts]
    init_mounts = [*own_mounts(token=False, authorities=trusted), *source.init_mounts]
    refuse_collisions(asked, [*mounts, *(init_mounts if source.prepared else ())])

    trainer = _container(names.TRAINER_CONTAINER, job, asked, launched.command)
    trainer["env"] = trainer_environment(owner, launched, source, settings, asked, gpu=job.accelerator.kind == "gpu")
    trainer["ports"] = [{"name": "trainer", "containerPort": TRAINER_PORT, "protocol": "TCP"}]
    trainer["resources"] = _resources(asked, job.placement.resources)
    trainer["volumeMounts"] = [*mounts, *(asked.volume_mounts or ())]
    result: dict[str, Any] = {}
    if source.prepared:
        init = _container(names.SOURCE_CONTAINER, job, asked, SOURCE_COMMAND)
        init["env"] = init_environment(launched, source, settings, asked)
        # As much as the trainer: a quota may want limits of every container, and the larger of the two counts.
        init["resources"] = _resources(asked, {})
        init["volumeMounts"] = [*init_mounts, *(asked.volume_mounts or ())]
        result["initContainers"] = [init]
    audience = names.audience(owner.namespace, owner.uid) if reported else None
    volumes = own_volumes(owner.name, job.accelerator, audience, settings.authorities)
    return {
        **result,
        "containers": [trainer],
        "volumes": [*volumes, *source.volumes, *(asked.volumes or ())],
    }


def _container(name: str, job: ResolvedJob, asked: PodTemplate, command: tuple[str, ...]) -> dict[str, Any]:
    if job.image is None:
        raise InvalidSpec(
            "spec.podTemplate.image", "no image", next_step="Name one, or set trainerImage in the operator's settings."
        )
    return {
        "name": name,
        "image": job.image,
        "command": list(command),
        **({"envFrom": asked.env_from} if asked.env_from else {}),
        "securityContext": _CONTAINER_SECURITY,
        # The last Event is written there; a process that dies before it can leaves the end of its log, but not into
        # the status of a job that was given secrets and may have printed them.
        "terminationMessagePolicy": "File" if secret_sources(asked, {}) else "FallbackToLogsOnError",
    }


def _resources(asked: PodTemplate, devices: dict[str, int]) -> dict[str, Any]:
    written = asked.resources
    limits = {**((written.limits if written else None) or {}), **devices}
    requests = {**((written.requests if written else None) or {}), **devices}
    # Kubernetes takes a limit for the request where there is none.
    defaults = {name: value for name, value in DEFAULT_REQUESTS.items() if name not in limits}
    return {"requests": {**defaults, **requests}, **({"limits": limits} if limits else {})}

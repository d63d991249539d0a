"""Indexed Job of one attempt: one pod per worker, all from the same template.

Sources of a pod field, in order of precedence:

    1. the operator     command, security, restart policy, volumes named mptraining-*, MPTRAINING_*; the accelerator's
                        selector, resource and tolerations from the resolved job; its own labels and annotations
    2. the job          `spec.podTemplate` and `spec.scheduling`
    3. the settings     proxies, CA certificates, pull secrets, priority class, labels
    4. the defaults     HOME, TF_CPP_MIN_LOG_LEVEL and others; requests of CPU and memory by the accelerator's machine
                        (`mptraining_api.machines.machine_types`), on CPUs 250m and 512Mi, so that no pod is
                        BestEffort, which the kubelet evicts first

Lists and maps are merged: the job's node selector, tolerations, labels, annotations, volumes and mounts are added to
the operator's. Validation rejects contradictions; `volumes.check_collisions` rejects colliding mounts. Of two
tolerations for a lost node Kubernetes applies the shorter, so that a job cannot keep its pods on it forever.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mptraining_api.launch import JOB_DIGEST, MAX_TO_KEEP, SOURCE_COMMAND, TRAINER_PORT, Launch, launch
from mptraining_api.pods.fields import InitContainer, PodTemplate, Resources
from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.attempt import for_attempt
from mptraining_api.resolved_job import Placement, ResolvedJob
from mptraining_api.spec import Scheduling
from mptraining_api.status import config_map_name
from mptraining_operator.jobs.resources import names
from mptraining_operator.jobs.resources.affinity import affinity
from mptraining_operator.jobs.resources.environment import (
    PodSettings,
    init_environment,
    secret_sources,
    trainer_environment,
)
from mptraining_operator.jobs.resources.job_objects import JOB_FILE, Owner, claim_template, metadata
from mptraining_operator.jobs.resources.pod_groups import Gang, pod_annotations, pod_fields, pod_labels
from mptraining_operator.jobs.resources.queue_job import Admitted, with_admission
from mptraining_operator.jobs.resources.volumes import (
    JOB_FOLDER,
    SHARED_MEMORY_FOLDER,
    check_collisions,
    own_mounts,
    own_volumes,
    source_parts,
)

SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
# The uid and gid of the images' user.
USER = 1000
DEFAULT_REQUESTS = {"cpu": "250m", "memory": "512Mi"}

# Until the pods of a lost node are evicted: the 300 s of Kubernetes would hold the gang that long.
_UNREACHABLE_SECONDS = 30
_LOST_NODE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    # Otherwise the kubelet changes the group of every file of a volume at each start.
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
_CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
# A quota may require requests of every container; those of sidecars are added to the trainer's.
_INIT_REQUESTS = {"cpu": "50m", "memory": "64Mi"}
# NVIDIA's images would otherwise get all GPUs of the node if NVIDIA's runtime is its default.
_NO_GPUS = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
# OpenShift's restricted-v2 sets user and groups from the namespace's range.
_PLATFORM_SECURITY = {
    field: value for field, value in _POD_SECURITY.items() if field not in ("runAsUser", "runAsGroup", "fsGroup")
}


def indexed_job(
    owner: Owner,
    job: ResolvedJob,
    *,
    attempt: int,
    settings: PodSettings,
    digest: str = "",
    max_to_keep: int | None = None,
    gang: Gang | None = None,
    machine: int = 0,
    workers: int | None = None,
    admitted: Admitted | None = None,
    avoided_nodes: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Build the Job of one attempt from the frozen job, and from nothing else of the spec but `max_to_keep`.

    `digest` is that of job.json, and `max_to_keep` the current number of checkpoints, by default that of the frozen
    job. `machine` and `workers` are those of the attempt, as for `resolve.attempt.for_attempt`.

    With a `gang` a scheduler places its pods together, by a PodGroup of the same name.

    `admitted` is the job's place in its queue; `avoided_nodes` are used only where no other node fits.

    Raises InvalidSpec for a pod template that cannot be merged with the operator's.
    """
    job = for_attempt(job, machine=machine, workers=workers)
    pods = _Pods(owner, job, digest, max_to_keep, settings, attempt, machine, workers, gang, avoided_nodes)
    built = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        # No ttlSecondsAfterFinished: the operator deletes the Job, and a TTL breaks Kueue's preemption (kueue#2923).
        "metadata": {
            **metadata(owner, names.batch_job(owner.name, attempt), pods.labels),
            "annotations": {
                **({names.GANG: gang.api.api_version} if gang else {}),
                **({names.MACHINE: str(machine)} if machine else {}),
            },
        },
        "spec": {
            "completionMode": "Indexed",
            "completions": job.workers,
            "parallelism": job.workers,
            # The first worker that fails ends the attempt, and no single worker is replaced. Unlike backoffLimit,
            # these limits keep the pods with their logs and exit codes.
            "backoffLimitPerIndex": 0,
            "maxFailedIndexes": 0,
            "podReplacementPolicy": "Failed",
            # Without this rule the Job controller replaces a disrupted pod while the other workers run.
            "podFailurePolicy": {
                "rules": [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
            },
            "template": pods.template(),
        },
    }
    # The Job must not share mutable values with the frozen spec or with the next attempt.
    built = copy.deepcopy(built)
    return built if admitted is None else with_admission(built, admitted)


@dataclass(frozen=True, slots=True)
class _Pods:
    """The pods of one attempt: `machine` and `workers` are the attempt's."""

    owner: Owner
    job: ResolvedJob
    digest: str
    max_to_keep: int | None
    settings: PodSettings
    attempt: int
    machine: int
    workers: int | None
    gang: Gang | None
    avoided_nodes: tuple[str, ...]

    @property
    def labels(self) -> dict[str, str]:
        return names.attempt_labels(self.owner.name, self.owner.uid, self.attempt)

    @property
    def written(self) -> PodTemplate:
        return self.job.pod_template or PodTemplate()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Raise InvalidSpec for an error in reading the template's untyped fields, such as env."""
        try:
            yield
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if self.attempt > 1 or self.written == PodTemplate():
                # A fault of the operator: pods were built of that template before, or it is empty.
                raise
            raise InvalidSpec(
                "spec.podTemplate",
                f"no pod can be built of it: {type(error).__name__}: {error}",
                expected="the fields of a pod, as `kubectl explain pod.spec` prints them",
            ) from error

    def template(self) -> dict[str, Any]:
        written, settings = self.written, self.settings
        group = names.batch_job(self.owner.name, self.attempt)
        return {
            "metadata": {
                "labels": {
                    **(written.labels or {}),
                    **self.labels,
                    **({names.PEERS: "true"} if self.job.workers > 1 else {}),
                    **pod_labels(self.gang, group),
                },
                # Eviction of one worker by the cluster autoscaler restarts all of them.
                "annotations": {
                    **(written.annotations or {}),
                    SAFE_TO_EVICT: "false",
                    **pod_annotations(self.gang, group),
                },
            },
            "spec": {
                "restartPolicy": "Never",
                "subdomain": names.SERVICE,
                "terminationGracePeriodSeconds": settings.grace_seconds,
                "securityContext": _PLATFORM_SECURITY if settings.platform_user else _POD_SECURITY,
                # Service links add variables for every Service of the namespace: thousands, with colliding names.
                "enableServiceLinks": False,
                **self._identity(),
                **pod_fields(self.gang),
                **self._placement(),
                **_given(
                    runtimeClassName=written.runtime_class_name,
                    dnsPolicy=written.dns_policy,
                    dnsConfig=written.dns_config,
                ),
                **self._containers(),
            },
        }

    def _identity(self) -> dict[str, Any]:
        """Return the service account, pull secrets, priority and scheduler.

        Without an account in the job, no token for the Kubernetes API is mounted; with one the pod leaves
        `automountServiceAccountToken` unset, so that the account's own value applies. Google credentials need no token
        in the pod: GKE's metadata server provides them for the pod's account.
        """
        account, scheduling = self.written.service_account_name, self.job.scheduling or Scheduling()
        return {
            **({"serviceAccountName": account} if account else {"automountServiceAccountToken": False}),
            **_given(
                imagePullSecrets=self.written.image_pull_secrets,
                priorityClassName=scheduling.priority_class_name or self.settings.runtime.priority_class_name,
                schedulerName=scheduling.scheduler_name,
            ),
        }

    def _placement(self) -> dict[str, Any]:
        written, placement, seconds = self.written, self.job.placement, _UNREACHABLE_SECONDS
        lost = [
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
            for key in _LOST_NODE
        ]
        tolerations = [*placement.tolerations, *lost]
        tolerations += [toleration for toleration in written.tolerations or () if toleration not in tolerations]
        selector = {**(written.node_selector or {}), **placement.node_selector}
        with self._reading():
            near = affinity(placement, written.affinity, self.labels, self.avoided_nodes)
            spread = self._spread()
        return {
            **_given(nodeSelector=selector),
            "tolerations": tolerations,
            **_given(affinity=near, topologySpreadConstraints=spread),
        }

    def _spread(self) -> list[dict[str, Any]]:
        """Return the topology spread constraints; those of the job count its pods if they name no others."""
        selector = {"labelSelector": {"matchLabels": self.labels}}
        theirs = [{**selector, **constraint} for constraint in self.written.topology_spread_constraints or ()]
        # A preference only: all workers on one node is better than waiting.
        ours = {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            **selector,
        }
        # The API server refuses two constraints with the same pair.
        pair = ("topologyKey", "whenUnsatisfiable")
        taken = any(all(constraint.get(name) == ours[name] for name in pair) for constraint in theirs)
        return [*([ours] if self.job.workers > 1 and not taken else []), *theirs]

    def _launch(self) -> Launch:
        """Return the launch, with the digest of the job file and a field that was changed since the job was frozen."""
        owner, job = self.owner, self.job
        launched = launch(
            job,
            hosts=names.hosts(owner.name, owner.namespace, self.attempt, job.workers),
            job_path=f"{JOB_FOLDER}/{JOB_FILE}",
            attempt=self.attempt,
            machine=self.machine,
            workers=self.workers,
            job_uid=owner.uid,
            job_created=owner.created,
        )
        more = {JOB_DIGEST: self.digest} if self.digest else {}
        if self.max_to_keep not in (None, job.checkpoint.max_to_keep):
            more[MAX_TO_KEEP] = str(self.max_to_keep)
        return launched.model_copy(update={"environment": launched.environment | more})

    def _containers(self) -> dict[str, Any]:
        owner, job, written, settings = self.owner, self.job, self.written, self.settings
        source, launched = source_parts(job), self._launch()
        reported, ca_config_map = settings.progress_url is not None, settings.runtime.ca_config_map
        mounts = [*own_mounts(token=reported, ca_bundle=ca_config_map is not None), *source.trainer_mounts]
        init_mounts = [*own_mounts(token=False, ca_bundle=ca_config_map is not None), *source.init_mounts]
        mounted = [*mounts, *(init_mounts if source.prepared else ()), {"mountPath": SHARED_MEMORY_FOLDER}]
        gpus = job.accelerator.count_per_worker if job.accelerator.kind == "gpu" else 0
        with self._reading():
            check_collisions(written, mounted)
            trainer = self._container(names.TRAINER_CONTAINER, launched.command)
            trainer["env"] = trainer_environment(owner, launched, source, settings, written, gpus=gpus)
        trainer["ports"] = [{"name": "trainer", "containerPort": TRAINER_PORT, "protocol": "TCP"}]
        trainer["resources"] = trainer_resources(written, job.placement)
        claims = _claims(owner, job)
        if claims:
            trainer["resources"]["claims"] = [{"name": names.CLAIM}]
        trainer["volumeMounts"] = [*mounts, *(written.volume_mounts or ())]
        if written.lifecycle is not None:
            trainer["lifecycle"] = written.lifecycle
        # Sidecars such as a proxy must run before the source is prepared, which may install packages.
        before = [_init_container(container) for container in written.init_containers or ()]
        if source.prepared:
            init = self._container(names.SOURCE_CONTAINER, SOURCE_COMMAND)
            with self._reading():
                init["env"] = init_environment(launched, source, settings, written)
            # The trainer's requests and limits: a quota may require them of every container, and the maximum of init
            # container and trainer counts.
            init["resources"] = _resources(written, job.placement, {})
            init["volumeMounts"] = [*init_mounts, *(written.volume_mounts or ())]
            before.append(init)
        audience = names.audience(owner.namespace, owner.uid) if reported else None
        volumes = own_volumes(config_map_name(owner.name), job.accelerator, audience, ca_config_map)
        return {
            **_given(initContainers=before),
            **claims,
            "containers": [trainer],
            "volumes": [*volumes, *source.volumes, *(written.volumes or ())],
        }

    def _container(self, name: str, command: tuple[str, ...]) -> dict[str, Any]:
        if self.job.image is None:
            step = "Name one, or set runtimes.default.images in the operator's settings."
            raise InvalidSpec("spec.podTemplate.image", "no image", next_step=step)
        return {
            "name": name,
            "image": self.job.image,
            "command": list(command),
            **_given(envFrom=self.written.env_from),
            "securityContext": _CONTAINER_SECURITY,
            # The trainer writes its last Event there; if it cannot, the kubelet uses the end of the log, except for a
            # job with secrets, which the log may contain.
            "terminationMessagePolicy": "File" if secret_sources(self.written, {}) else "FallbackToLogsOnError",
        }


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}


def _init_container(written: InitContainer) -> dict[str, Any]:
    """Return an init container or a sidecar of the job, secured as the trainer is."""
    resources = written.resources or Resources()
    limits, requests = resources.limits or {}, resources.requests or {}
    missing = {name: value for name, value in _INIT_REQUESTS.items() if name not in limits}
    return {
        **written.to_document(),
        "env": [_NO_GPUS, *(written.env or ())],
        "resources": {"requests": {**missing, **requests}, **_given(limits=limits)},
        "securityContext": _CONTAINER_SECURITY,
    }


def _claims(owner: Owner, job: ResolvedJob) -> dict[str, Any]:
    """Return the claim of the pod's accelerators, if they are of a DeviceClass."""
    if job.placement.device_class is None:
        return {}
    template = claim_template(owner, job.placement.device_class, job.accelerator.count_per_worker)
    claim = {"name": names.CLAIM, "resourceClaimTemplateName": template["metadata"]["name"]}
    return {"resourceClaims": [claim]}


def trainer_resources(pod_template: PodTemplate | None, placement: Placement) -> dict[str, Any]:
    return _resources(pod_template or PodTemplate(), placement, placement.resources)


def _resources(pod_template: PodTemplate, placement: Placement, devices: dict[str, int]) -> dict[str, Any]:
    written = pod_template.resources
    limits = {**((written.limits if written else None) or {}), **devices}
    requests = {**((written.requests if written else None) or {}), **devices}
    needs = placement.requests or DEFAULT_REQUESTS
    # Kubernetes uses a limit as the request if there is no request.
    missing = {name: value for name, value in needs.items() if name not in limits}
    return {"requests": {**missing, **requests}, **_given(limits=limits)}

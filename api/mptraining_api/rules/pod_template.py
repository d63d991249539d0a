"""Rules of the pod template and scheduling: no host access, and no settings that the operator decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mptraining_api.pods.fields import VOLUME_KINDS
from mptraining_api.rules.rule import (
    Condition,
    Rule,
    allows,
    distinct,
    forbids,
    given,
    matches,
    matching,
    requires,
    rule,
    within,
    without_keys,
)
from mptraining_api.status import SOURCE_CONTAINER, TRAINER_CONTAINER

# Variables that are set for each process; a job's own value would break the gang. NVIDIA_VISIBLE_DEVICES in a pod
# overrides the devices from the device plugin: `all` would include the GPUs of other pods.
_SET_BY_LAUNCH = ("TF_CONFIG", "JOB_COMPLETION_INDEX", "TF_USE_LEGACY_KERAS", "NVIDIA_VISIBLE_DEVICES")
# Settings of the trainer that users may set; its error messages name them.
_SETTINGS = (
    "MPTRAINING_DEBUG",
    "MPTRAINING_GCS_ANONYMOUS",
    "MPTRAINING_MODEL_WAIT_SECONDS",
    "MPTRAINING_PACKAGES_CACHE",
    "MPTRAINING_STORAGE_RETRY_SECONDS",
)
_SELECTORS = (
    "cloud.google.com/gke-accelerator",
    "cloud.google.com/gke-tpu-accelerator",
    "cloud.google.com/gke-tpu-topology",
)
# Deprecated forms of fields of the security context; the API server still applies the AppArmor one.
_SECURITY = (
    "container.apparmor.security.beta.kubernetes.io/",
    "container.seccomp.security.alpha.kubernetes.io/",
    "seccomp.security.alpha.kubernetes.io/",
)
_OWN = "mptraining.dev/"
# Prefix of containers that the operator may add.
OWN_CONTAINERS = "mptraining-"


def _volume_is_admitted(volume: dict[str, Any]) -> bool:
    kinds = set(volume) - {"name"}
    return len(kinds) == 1 and kinds <= set(VOLUME_KINDS)


_VARIABLE = matches(
    "name",
    f"^({'|'.join(_SETTINGS)})$|^(?!({'|'.join(_SET_BY_LAUNCH)})$|MPTRAINING_)",
    f"other variables than {', '.join(_SET_BY_LAUNCH)} and MPTRAINING_*, which the launch sets "
    f"({', '.join(_SETTINGS)} apart)",
    "Remove it; keras: Legacy chooses tf_keras.",
)
# nvidia.com/ includes a part of a GPU (nvidia.com/mig-1g.5gb) and a shared one (nvidia.com/gpu.shared).
_NO_DEVICES = [
    without_keys(field, "nvidia.com/", "google.com/tpu", because="which spec.accelerator.countPerWorker decides")
    for field in ("resources.requests", "resources.limits")
]
_NO_HOST = [
    forbids(f"{hook}.{handler}.host", because="which would make the kubelet connect to another one than the pod")
    for hook in ("lifecycle.postStart", "lifecycle.preStop", "startupProbe")
    for handler in ("httpGet", "tcpSocket")
]

_TEMPLATE = "spec.podTemplate"
# The resource has no schema for containers, variables, volumes, hooks and names of the DNS.
_RULES_WITHOUT_SCHEMA = (
    *within(
        f"{_TEMPLATE}.initContainers[]",
        matches(
            "name",
            f"^(?!({TRAINER_CONTAINER}|{SOURCE_CONTAINER})$|{OWN_CONTAINERS})",
            f"another name than {TRAINER_CONTAINER}, {SOURCE_CONTAINER} and {OWN_CONTAINERS}*",
            "Rename the container.",
        ),
        requires(
            "restartPolicy",
            "Always",
            when=given("startupProbe") | given("lifecycle"),
            because="which Kubernetes takes of sidecars alone",
        ),
        *_NO_HOST,
        *_NO_DEVICES,
    ),
    *within(f"{_TEMPLATE}.initContainers[].env[]", _VARIABLE),
    *within(f"{_TEMPLATE}.env[]", _VARIABLE),
    *within(
        f"{_TEMPLATE}.volumes[]",
        rule(
            "",
            Condition("", _volume_is_admitted),
            f"one of {', '.join(VOLUME_KINDS)} in each volume, since hostPath and others would open the machine or its "
            "network to the job",
            "Take a persistentVolumeClaim: its volume may be of any kind.",
        ),
    ),
    *within(
        _TEMPLATE,
        distinct("initContainers", "name", fix="Rename the container."),
        forbids(
            "lifecycle.preStop",
            because="as the trainer saves its checkpoint at SIGTERM, which would come only after it",
            fix="Give the hook to a sidecar of podTemplate.initContainers, which ends after the trainer.",
        ),
        *_NO_HOST,
        requires(
            "dnsConfig.nameservers",
            when=given("dnsPolicy", "None"),
            because="which know the names of the cluster's Services too",
            fix="Add them, or remove dnsPolicy: dnsConfig adds to the cluster's.",
        ),
    ),
)
POD_RULES: tuple[Rule, ...] = (
    *(replace(rule, cel=None) for rule in _RULES_WITHOUT_SCHEMA),
    *within(
        _TEMPLATE,
        *_NO_DEVICES,
        without_keys("nodeSelector", *_SELECTORS, because="which follow from spec.accelerator"),
        without_keys("labels", _OWN, because="which the operator sets", fix="Use a prefix of your own."),
        without_keys("annotations", _OWN, *_SECURITY, because="which the operator decides"),
        rule(
            "labels",
            Condition(
                "!has(self.labels) || self.labels.all(k, size(self.labels[k]) <= 63)",
                lambda template: all(len(value) <= 63 for value in (template.labels or {}).values()),
            ),
            "values of at most 63 characters",
            "Longer text belongs in annotations.",
        ),
    ),
    *within(
        "spec.scheduling",
        rule(
            "priorityClassName",
            ~matching("priorityClassName", "^system-"),
            "no class of Kubernetes' system pods, which preempt all others",
            "Ask the cluster's administrator for a class for training.",
        ),
        allows("gang", "Auto", "None", when=given("queueName"), because="since Kueue admits all workers or none"),
        forbids(
            "schedulerName",
            "default-scheduler",
            when=given("gang", "Volcano"),
            because="whose PodGroups it does not read",
        ),
        requires("queueName", when=given("workloadPriorityClassName"), fix="Add it, or use priorityClassName."),
    ),
)

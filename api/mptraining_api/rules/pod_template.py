"""Rules of the pod template and scheduling: no host access, and no settings that the operator decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mptraining_api.pods.fields import OTHER_VOLUME_KINDS, VOLUME_KINDS, PodTemplate, Resources
from mptraining_api.rules.rule import Rule
from mptraining_api.spec import Scheduling

# Variables that are set for each process; a job's own value would break the gang. NVIDIA_VISIBLE_DEVICES in a pod
# overrides the devices from the device plugin: `all` would include the GPUs of other pods.
_SET_BY_LAUNCH = ("TF_CONFIG", "JOB_COMPLETION_INDEX", "TF_USE_LEGACY_KERAS", "NVIDIA_VISIBLE_DEVICES")
_PREFIX = "MPTRAINING_"
# Settings of the trainer that users may set; its error messages name them.
_SETTINGS = (
    "MPTRAINING_DEBUG",
    "MPTRAINING_GCS_ANONYMOUS",
    "MPTRAINING_MODEL_WAIT_SECONDS",
    "MPTRAINING_PACKAGES_CACHE",
    "MPTRAINING_STORAGE_RETRY_SECONDS",
)
# Prefixes, which include a part of a GPU (nvidia.com/mig-1g.5gb) and a shared one (nvidia.com/gpu.shared).
_DEVICES = ("nvidia.com/", "google.com/tpu")
_SELECTORS = (
    "cloud.google.com/gke-accelerator",
    "cloud.google.com/gke-tpu-accelerator",
    "cloud.google.com/gke-tpu-topology",
)
_OWN_PREFIX = "mptraining.dev/"
# Deprecated forms of fields of the security context; the API server still applies the AppArmor one.
_SECURITY_ANNOTATIONS = (
    "container.apparmor.security.beta.kubernetes.io/",
    "container.seccomp.security.alpha.kubernetes.io/",
    "seccomp.security.alpha.kubernetes.io/",
)
# The priority classes of Kubernetes' system pods, which preempt all other pods.
_SYSTEM_CLASSES = "system-"


def _cel_list(values: tuple[str, ...]) -> str:
    return "[" + ", ".join(f"'{value}'" for value in values) + "]"


def _cel_has(kinds: tuple[str, ...]) -> str:
    return "[" + ", ".join(f"has(v.{kind})" for kind in kinds) + "]"


def _starts_with_one(prefixes: tuple[str, ...]) -> str:
    return "(" + " || ".join(f"k.startsWith('{each}')" for each in prefixes) + ")"


def _known_kinds(volumes: list[dict[str, Any]]) -> bool:
    kinds = [set(volume) - {"name"} for volume in volumes]
    return all(len(each) == 1 and each <= set(VOLUME_KINDS) for each in kinds)


def _free_names(env: list[dict[str, Any]]) -> bool:
    names = [entry.get("name", "") for entry in env]
    return all(name in _SETTINGS or not (name in _SET_BY_LAUNCH or str(name).startswith(_PREFIX)) for name in names)


def _no_devices(resources: Resources) -> bool:
    given = {*(resources.requests or {}), *(resources.limits or {})}
    return not any(name.startswith(_DEVICES) for name in given)


def _no_security(template: PodTemplate) -> bool:
    return not any(key.startswith(_SECURITY_ANNOTATIONS) for key in template.annotations or {})


def _no_system_class(scheduling: Scheduling) -> bool:
    return not (scheduling.priority_class_name or "").startswith(_SYSTEM_CLASSES)


def _own_selectors(template: PodTemplate) -> bool:
    return not set(template.node_selector or {}).intersection(_SELECTORS)


def _own_names(field: str) -> Callable[[PodTemplate], bool]:
    def holds(template: PodTemplate) -> bool:
        return not any(key.startswith(_OWN_PREFIX) for key in getattr(template, field) or {})

    return holds


def _label_length(template: PodTemplate) -> bool:
    return all(len(value) <= 63 for value in (template.labels or {}).values())


POD_RULES: tuple[Rule, ...] = (
    Rule(
        "spec.podTemplate.volumes",
        "spec.podTemplate.volumes",
        f"self.all(v, {_cel_has(VOLUME_KINDS)}.exists_one(x, x) && !{_cel_has(OTHER_VOLUME_KINDS)}.exists(x, x))",
        f"one of {', '.join(VOLUME_KINDS)} in each volume, since hostPath and others would open the machine or its "
        "network to the job",
        "Take a persistentVolumeClaim: its volume may be of any kind.",
        _known_kinds,
    ),
    Rule(
        "spec.podTemplate.env",
        "spec.podTemplate.env",
        f"self.all(e, !has(e.name) || e.name in {_cel_list(_SETTINGS)} || "
        f"(!(e.name in {_cel_list(_SET_BY_LAUNCH)}) && !e.name.startsWith('{_PREFIX}')))",
        f"other variables than {', '.join(_SET_BY_LAUNCH)} and {_PREFIX}*, which the launch sets "
        f"({', '.join(_SETTINGS)} apart)",
        "Leave them out; keras: Legacy chooses tf_keras.",
        _free_names,
    ),
    Rule(
        "spec.podTemplate.resources",
        "spec.podTemplate.resources",
        " && ".join(
            f"(!has(self.{part}) || !self.{part}.exists(k, {_starts_with_one(_DEVICES)}))"
            for part in ("requests", "limits")
        ),
        "cpu, memory and the like, without accelerators",
        "spec.accelerator.countPerNode says how many there are.",
        _no_devices,
    ),
    Rule(
        "spec.podTemplate",
        "spec.podTemplate.nodeSelector",
        f"!has(self.nodeSelector) || !self.nodeSelector.exists(k, k in {_cel_list(_SELECTORS)})",
        "labels other than the accelerator's and the topology's",
        "spec.accelerator chooses those.",
        _own_selectors,
    ),
    *(
        Rule(
            "spec.podTemplate",
            f"spec.podTemplate.{field}",
            f"!has(self.{field}) || !self.{field}.exists(k, k.startsWith('{_OWN_PREFIX}'))",
            f"keys outside {_OWN_PREFIX}, which the operator sets",
            "Use a prefix of your own.",
            _own_names(field),
        )
        for field in ("labels", "annotations")
    ),
    Rule(
        "spec.podTemplate",
        "spec.podTemplate.annotations",
        f"!has(self.annotations) || !self.annotations.exists(k, {_starts_with_one(_SECURITY_ANNOTATIONS)})",
        f"keys outside {', '.join(_SECURITY_ANNOTATIONS)}, which the operator's security context decides",
        "Leave them out.",
        _no_security,
    ),
    Rule(
        "spec.scheduling",
        "spec.scheduling.priorityClassName",
        f"!has(self.priorityClassName) || !self.priorityClassName.startsWith('{_SYSTEM_CLASSES}')",
        f"a class that does not begin with {_SYSTEM_CLASSES}, as Kubernetes' own do",
        "Ask the cluster's administrator for a class for training.",
        _no_system_class,
    ),
    Rule(
        "spec.podTemplate",
        "spec.podTemplate.labels",
        "!has(self.labels) || self.labels.all(k, size(self.labels[k]) <= 63)",
        "values of at most 63 characters",
        "Longer text belongs in annotations.",
        _label_length,
    ),
)

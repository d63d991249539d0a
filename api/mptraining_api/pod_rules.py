"""The rules about what a job may say of its pods: no host access, nothing that the operator decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mptraining_api.rule import Rule
from mptraining_api.spec_pods import PodTemplate, Resources

# Set by the launch (`launch`) for each process; a job's own value would break the gang.
_SET_BY_LAUNCH = ("TF_CONFIG", "JOB_COMPLETION_INDEX", "TF_USE_LEGACY_KERAS")
_PREFIX = "MPTRAINING_"
# Settings of the trainer that are for people, whom its errors name them to.
_SETTINGS = (
    "MPTRAINING_DEBUG",
    "MPTRAINING_GCS_ANONYMOUS",
    "MPTRAINING_MODEL_WAIT_SECONDS",
    "MPTRAINING_STORAGE_RETRY_SECONDS",
)
_DEVICES = ("nvidia.com/gpu", "google.com/tpu")
_SELECTORS = (
    "cloud.google.com/gke-accelerator",
    "cloud.google.com/gke-tpu-accelerator",
    "cloud.google.com/gke-tpu-topology",
)
_OWN_PREFIX = "mptraining.dev/"


def _cel_list(values: tuple[str, ...]) -> str:
    return "[" + ", ".join(f"'{value}'" for value in values) + "]"


def _no_host_path(volumes: list[dict[str, Any]]) -> bool:
    return all("hostPath" not in volume for volume in volumes)


def _free_names(env: list[dict[str, Any]]) -> bool:
    names = [entry.get("name", "") for entry in env]
    return all(name in _SETTINGS or not (name in _SET_BY_LAUNCH or str(name).startswith(_PREFIX)) for name in names)


def _no_devices(resources: Resources) -> bool:
    given = {*(resources.requests or {}), *(resources.limits or {})}
    return not given.intersection(_DEVICES)


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
        "self.all(v, !has(v.hostPath))",
        "volumes without hostPath, which would open the machine to the job",
        "Take a persistentVolumeClaim, an emptyDir, a configMap or a secret.",
        _no_host_path,
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
            f"(!has(self.{part}) || !self.{part}.exists(k, k in {_cel_list(_DEVICES)}))"
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
        "spec.podTemplate.labels",
        "!has(self.labels) || self.labels.all(k, size(self.labels[k]) <= 63)",
        "values of at most 63 characters",
        "Longer text belongs in annotations.",
        _label_length,
    ),
)

"""Rules of the pod template and scheduling: no host access, and no settings that the operator decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mptraining_api.pods.fields import VOLUME_KINDS, InitContainer, PodTemplate, Resources
from mptraining_api.rules.clause import Clause, absent, absent_or, absent_or_not, field_at, rule
from mptraining_api.rules.rule import Rule
from mptraining_api.status import SOURCE_CONTAINER, TRAINER_CONTAINER

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
# Prefix of containers that the operator may add.
OWN_CONTAINERS = "mptraining-"
# Deprecated forms of fields of the security context; the API server still applies the AppArmor one.
_SECURITY_ANNOTATIONS = (
    "container.apparmor.security.beta.kubernetes.io/",
    "container.seccomp.security.alpha.kubernetes.io/",
    "seccomp.security.alpha.kubernetes.io/",
)
# The priority classes of Kubernetes' system pods, which preempt all other pods.
_SYSTEM_CLASSES = "system-"
_DEFAULT_SCHEDULER = "default-scheduler"


def _cel_list(values: tuple[str, ...]) -> str:
    return "[" + ", ".join(f"'{value}'" for value in values) + "]"


def _starts_with_one(prefixes: tuple[str, ...]) -> str:
    return "(" + " || ".join(f"k.startsWith('{each}')" for each in prefixes) + ")"


def _known_kinds(volumes: list[dict[str, Any]]) -> bool:
    kinds = [set(volume) - {"name"} for volume in volumes]
    return all(len(each) == 1 and each <= set(VOLUME_KINDS) for each in kinds)


def _first(holds: Callable[[list[dict[str, Any]]], bool], below: str = "") -> Callable[[list[dict[str, Any]]], str]:
    """Return the path of the first item for which `holds` is false."""
    return lambda items: f"[{next(i for i, each in enumerate(items) if not holds([each]))}]{below}"


def _other_variables(*allowed: str) -> Callable[[list[dict[str, Any]]], bool]:
    """Return the predicate that no variable is of the launch, but the allowed ones."""

    def holds(env: list[dict[str, Any]]) -> bool:
        names = {str(entry.get("name", "")) for entry in env}.difference(allowed)
        return not any(name in _SET_BY_LAUNCH or name.startswith(_PREFIX) for name in names)

    return holds


def _no_key(field: str, *prefixes: str) -> Clause:
    """Return the clause that no key of labels or annotations begins with one of the prefixes."""

    def holds(template: PodTemplate) -> bool:
        return not any(key.startswith(prefixes) for key in field_at(template, field))

    return absent(field) | Clause(f"!self.{field}.exists(k, {_starts_with_one(prefixes)})", holds)


_OTHER_SELECTORS = Clause(
    f"!self.nodeSelector.exists(k, k in {_cel_list(_SELECTORS)})",
    lambda template: not set(template.node_selector).intersection(_SELECTORS),
)
_SHORT_VALUES = Clause(
    "self.labels.all(k, size(self.labels[k]) <= 63)",
    lambda template: all(len(value) <= 63 for value in template.labels.values()),
)
_NO_SYSTEM_CLASS = Clause(
    f"!self.priorityClassName.startsWith('{_SYSTEM_CLASSES}')",
    lambda scheduling: not scheduling.priority_class_name.startswith(_SYSTEM_CLASSES),
)
_CEL_NO_DEVICES = " && ".join(
    f"(!has(self.{part}) || !self.{part}.exists(k, {_starts_with_one(_DEVICES)}))" for part in ("requests", "limits")
)


def _no_devices(resources: Resources) -> bool:
    given = {*(resources.requests or {}), *(resources.limits or {})}
    return not any(name.startswith(_DEVICES) for name in given)


def _no_host(handler: object) -> bool:
    found = [handler.get(kind) for kind in ("httpGet", "tcpSocket")] if isinstance(handler, dict) else []
    return not any(each.get("host") for each in found if isinstance(each, dict))


def _no_hook_host(lifecycle: dict[str, Any]) -> bool:
    return _no_host(lifecycle.get("postStart")) and _no_host(lifecycle.get("preStop"))


def _own_container_names(containers: list[InitContainer]) -> bool:
    names = [each.name for each in containers]
    return len(set(names)) == len(names) and not any(_is_reserved(name) for name in names)


def _wrong_container_name(containers: list[InitContainer]) -> str:
    names = [each.name for each in containers]
    wrong = (i for i, name in enumerate(names) if _is_reserved(name) or name in names[:i])
    return f"[{next(wrong)}].name"


def _is_reserved(name: str) -> bool:
    return name in (TRAINER_CONTAINER, SOURCE_CONTAINER) or name.startswith(OWN_CONTAINERS)


def _only_of_sidecars(container: InitContainer) -> bool:
    return container.restart_policy == "Always" or not (container.startup_probe or container.lifecycle)


_CONTAINERS = "spec.podTemplate.initContainers"
_EACH = f"{_CONTAINERS}[]"
_NO_HOST = ("no host, which would make the kubelet connect to another one than the pod", "Leave the host out.")

POD_RULES: tuple[Rule, ...] = (
    Rule(
        _CONTAINERS,
        _CONTAINERS,
        None,
        f"names that differ, other than {TRAINER_CONTAINER}, {SOURCE_CONTAINER} and {OWN_CONTAINERS}*",
        "Rename the container.",
        _own_container_names,
        _wrong_container_name,
    ),
    Rule(
        _EACH,
        f"{_EACH}.restartPolicy",
        None,
        "Always for a container with startupProbe or lifecycle, which Kubernetes takes of sidecars alone",
        "Make it a sidecar, or leave them out.",
        _only_of_sidecars,
    ),
    Rule(
        _EACH,
        f"{_EACH}.startupProbe",
        None,
        *_NO_HOST,
        lambda container: _no_host(container.startup_probe),
    ),
    Rule(
        f"{_EACH}.lifecycle",
        f"{_EACH}.lifecycle",
        None,
        *_NO_HOST,
        _no_hook_host,
    ),
    Rule(
        f"{_EACH}.env",
        f"{_EACH}.env",
        None,
        f"other variables than {', '.join(_SET_BY_LAUNCH)} and {_PREFIX}*, which are the trainer's",
        "Leave them out.",
        _other_variables(),
        _first(_other_variables(), ".name"),
    ),
    Rule(
        f"{_EACH}.resources",
        f"{_EACH}.resources",
        None,
        "cpu, memory and the like, without accelerators",
        "The accelerators are the trainer's; spec.accelerator.countPerNode says how many there are.",
        _no_devices,
    ),
    Rule(
        "spec.podTemplate.lifecycle",
        "spec.podTemplate.lifecycle.preStop",
        None,
        "no preStop: the trainer saves its checkpoint at SIGTERM, which would come only after it",
        "Give the hook to a sidecar of podTemplate.initContainers, which ends after the trainer.",
        lambda lifecycle: "preStop" not in lifecycle,
    ),
    Rule(
        "spec.podTemplate.lifecycle",
        "spec.podTemplate.lifecycle.postStart",
        None,
        *_NO_HOST,
        lambda lifecycle: _no_host(lifecycle.get("postStart")),
    ),
    Rule(
        "spec.podTemplate",
        "spec.podTemplate.dnsConfig",
        None,
        "nameservers with dnsPolicy: None, which know the names of the cluster's Services too",
        "Add them, or leave dnsPolicy out: dnsConfig adds to the cluster's.",
        lambda template: template.dns_policy != "None" or bool((template.dns_config or {}).get("nameservers")),
    ),
    Rule(
        "spec.podTemplate.volumes",
        "spec.podTemplate.volumes",
        None,
        f"one of {', '.join(VOLUME_KINDS)} in each volume, since hostPath and others would open the machine or its "
        "network to the job",
        "Take a persistentVolumeClaim: its volume may be of any kind.",
        _known_kinds,
        _first(_known_kinds),
    ),
    Rule(
        "spec.podTemplate.env",
        "spec.podTemplate.env",
        None,
        f"other variables than {', '.join(_SET_BY_LAUNCH)} and {_PREFIX}*, which the launch sets "
        f"({', '.join(_SETTINGS)} apart)",
        "Leave them out; keras: Legacy chooses tf_keras.",
        _other_variables(*_SETTINGS),
        _first(_other_variables(*_SETTINGS), ".name"),
    ),
    Rule(
        "spec.podTemplate.resources",
        "spec.podTemplate.resources",
        _CEL_NO_DEVICES,
        "cpu, memory and the like, without accelerators",
        "spec.accelerator.countPerNode says how many there are.",
        _no_devices,
    ),
    rule(
        "spec.podTemplate",
        "spec.podTemplate.nodeSelector",
        absent("nodeSelector") | _OTHER_SELECTORS,
        "labels other than the accelerator's and the topology's",
        "spec.accelerator chooses those.",
    ),
    *(
        rule(
            "spec.podTemplate",
            f"spec.podTemplate.{field}",
            _no_key(field, _OWN_PREFIX),
            f"keys outside {_OWN_PREFIX}, which the operator sets",
            "Use a prefix of your own.",
        )
        for field in ("labels", "annotations")
    ),
    rule(
        "spec.podTemplate",
        "spec.podTemplate.annotations",
        _no_key("annotations", *_SECURITY_ANNOTATIONS),
        f"keys outside {', '.join(_SECURITY_ANNOTATIONS)}, which the operator's security context decides",
        "Leave them out.",
    ),
    rule(
        "spec.scheduling",
        "spec.scheduling.priorityClassName",
        absent("priorityClassName") | _NO_SYSTEM_CLASS,
        f"a class that does not begin with {_SYSTEM_CLASSES}, as Kubernetes' own do",
        "Ask the cluster's administrator for a class for training.",
    ),
    rule(
        "spec.scheduling",
        "spec.scheduling.gang",
        absent("queueName") | absent_or("gang", "Auto", "None"),
        "Auto or None together with queueName, since Kueue admits all workers of a job or none: it is the gang",
        "Leave gang out, or queueName.",
    ),
    rule(
        "spec.scheduling",
        "spec.scheduling.schedulerName",
        absent_or_not("gang", "Volcano") | absent_or_not("schedulerName", _DEFAULT_SCHEDULER),
        f"Volcano's scheduler for gang: Volcano, since {_DEFAULT_SCHEDULER} does not read Volcano's PodGroups",
        "Leave schedulerName out: Volcano's own is called volcano.",
    ),
    rule(
        "spec.podTemplate",
        "spec.podTemplate.labels",
        absent("labels") | _SHORT_VALUES,
        "values of at most 63 characters",
        "Longer text belongs in annotations.",
    ),
)

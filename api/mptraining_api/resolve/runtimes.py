"""Runtimes: named settings for jobs, which the platform's owner keeps in the operator's settings.

A job names one in spec.runtime, has that of its namespace, or has `default`. The job has precedence over the runtime,
and the runtime over `default`; the limits of both apply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from mptraining_api.accelerators import PROVISIONING
from mptraining_api.pods.fields import PodTemplate, Resources
from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.runtime_settings import DEFAULT, Runtime, RuntimeImages
from mptraining_api.resolved_job import Choice
from mptraining_api.spec import NO_RUNTIME, Machine, MPTrainingJob


def merge(base: PodTemplate, over: PodTemplate) -> PodTemplate:
    """Return `base` with the fields of `over`.

    Maps are merged key by key, lists by the name of their items; of two items with one name that of `over` is used.
    Items without a name are kept from both, those of `base` first: of envFrom, Kubernetes uses the last value.
    """
    values = {name: getattr(base, name) for name in type(base).model_fields}
    for name in type(over).model_fields:
        old, new = values[name], getattr(over, name)
        if new is None or old is None:
            values[name] = old if new is None else new
        elif name in _KEYS:
            values[name] = _merge_lists(old, new, _KEYS[name])
        elif name == "resources":
            values[name] = _merge_resources(old, new)
        elif isinstance(old, dict):
            values[name] = {**old, **new}
        else:
            values[name] = new
    return base.model_copy(update=values)


def _field(*names: str) -> Callable[[Any], Any]:
    def key(item: Any) -> Any:
        values = [item.get(name) if isinstance(item, dict) else getattr(item, name) for name in names]
        return tuple(values) if all(value is not None for value in values) else None

    return key


# The key of an item by field; without one, every item is kept once.
_KEYS: dict[str, Callable[[Any], Any]] = {
    "image_pull_secrets": _field("name"),
    "env": _field("name"),
    "env_from": lambda _: None,
    "volumes": _field("name"),
    "volume_mounts": _field("mountPath"),
    "tolerations": lambda _: None,
    "init_containers": _field("name"),
    "topology_spread_constraints": _field("topologyKey", "whenUnsatisfiable"),
}


def _merge_lists(old: Sequence[Any], new: Sequence[Any], key: Callable[[Any], Any]) -> list[Any]:
    names = [key(item) for item in new]
    kept = [item for item in old if item not in new and (key(item) is None or key(item) not in names)]
    return [*kept, *new]


def _merge_resources(old: Resources, new: Resources) -> Resources:
    parts = ("requests", "limits")
    merged = {part: {**(getattr(old, part) or {}), **(getattr(new, part) or {})} or None for part in parts}
    return old.model_copy(update=merged)


M = TypeVar("M", bound=Machine)
Runtimes = Mapping[str, Runtime]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The job with what its runtime adds, the runtime with the fields of `default`, and the reasons.

    `named` is the runtime without the fields of `default`.
    """

    job: MPTrainingJob
    name: str = DEFAULT
    named: Runtime = field(default_factory=Runtime)
    runtime: Runtime = field(default_factory=Runtime)
    choices: tuple[Choice, ...] = ()

    def because(self, named: object) -> str:
        """Return the reason of a field of the runtime; `named` is its value in the runtime without `default`."""
        return f"from the runtime {self.name if named else DEFAULT}"


def runtime_name(job: MPTrainingJob, defaults: Mapping[str, str]) -> str:
    """Return the name of the job's runtime; `defaults` are the names by namespace."""
    name = job.spec.runtime or defaults.get(job.metadata.namespace or "", DEFAULT)
    return DEFAULT if name == NO_RUNTIME else name


def complete(runtimes: Runtimes, name: str) -> Runtime:
    """Return the runtime with the fields of `default` that it does not set; `default` for an unknown name."""
    default = runtimes.get(DEFAULT, Runtime())
    runtime = runtimes.get(name, default)
    fields = {field: getattr(default, field) for field in Runtime.model_fields if getattr(runtime, field) is None}
    if default.pod_template is not None and runtime.pod_template is not None:
        fields["pod_template"] = merge(default.pod_template, runtime.pod_template)
    fields["images"] = RuntimeImages.parse(default.images.to_document() | runtime.images.to_document())
    return runtime.model_copy(update=fields)


def with_runtime(job: MPTrainingJob, runtimes: Runtimes | None, defaults: Mapping[str, str]) -> Chosen:
    """Return the job with the fields of its runtime. `runtimes` None: this process does not know them.

    Raises InvalidSpec for a runtime that does not exist, with the names of those that do.
    """
    spec, name = job.spec, runtime_name(job, defaults)
    if runtimes is None:
        because = "known to the cluster only: its pod settings, images and output are not checked here"
        choice = Choice(field="spec.runtime", value=name, because=because)
        return Chosen(job, choices=() if name == DEFAULT else (choice,))
    if name not in (DEFAULT, *runtimes):
        raise InvalidSpec(
            "spec.runtime",
            f"{name!r} is no runtime of this cluster",
            expected=f"one of {', '.join(sorted({DEFAULT, *runtimes}))}",
            next_step="`mptj runtimes` lists them.",
        )
    runtime = complete(runtimes, name)
    chosen = Chosen(job, name, runtimes.get(name, Runtime()), runtime)
    choices = _reasons(chosen)
    if name != DEFAULT:
        given = "given in the job" if spec.runtime else f"of the namespace {job.metadata.namespace!r}"
        choices.insert(0, Choice(field="spec.runtime", value=name, because=given))
    template = spec.pod_template
    if runtime.pod_template is not None:
        template = merge(runtime.pod_template, template or PodTemplate())
    accelerator = _provided(spec.accelerator, runtime)
    if accelerator.alternatives:
        others = [_provided(alternative, runtime) for alternative in accelerator.alternatives]
        accelerator = accelerator.model_copy(update={"alternatives": others})
    merged = spec.model_copy(update={"pod_template": template, "accelerator": accelerator})
    adds = name != DEFAULT or runtime.pod_template is not None or runtime.provisioning is not None
    return replace(
        chosen,
        job=job.model_copy(update={"spec": merged}) if adds else job,
        choices=tuple(choices),
    )


def _provided(machine: M, runtime: Runtime) -> M:
    """Return the machine with the provisioning of the runtime, if the job leaves it open."""
    impossible = machine.type == "cpu" and runtime.provisioning == "FlexStart"
    if runtime.provisioning is None or machine.provisioning is not None or impossible:
        return machine
    return machine.model_copy(update={"provisioning": runtime.provisioning})


def _reasons(chosen: Chosen) -> list[Choice]:
    """Return a choice for each field that the runtime decides or adds to."""
    job, runtime, named = chosen.job, chosen.runtime, chosen.named
    in_named = named.pod_template.to_document() if named.pod_template else {}
    written = job.spec.pod_template.to_document() if job.spec.pod_template else {}
    choices = []
    for key, value in (runtime.pod_template.to_document() if runtime.pod_template else {}).items():
        # Only names: values may be long, and variables of an environment private.
        text = str(value) if isinstance(value, str) else ", ".join(_names(value))
        if key in written and isinstance(value, str):
            continue
        because = chosen.because(key in in_named)
        reason = f"{because}, with the job's own" if key in written else because
        choices.append(Choice(field=f"spec.podTemplate.{key}", value=text, because=reason))
    if runtime.provisioning is not None and _provided(job.spec.accelerator, runtime) is not job.spec.accelerator:
        because = chosen.because(named.provisioning)
        choices.append(Choice(field=PROVISIONING, value=runtime.provisioning, because=because))
    return choices


def _names(value: object) -> list[str]:
    if isinstance(value, dict):
        return [str(key) for key in value]
    keys = ("name", "key", "mountPath", "topologyKey")
    items = value if isinstance(value, list) else []
    return [next((str(item[key]) for key in keys if item.get(key)), "…") for item in items if isinstance(item, dict)]

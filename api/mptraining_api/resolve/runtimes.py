"""Runtimes: named settings for jobs, which the platform's owner keeps in the operator's settings.

A job names one in spec.runtime, or has that of its namespace. The job has precedence over the runtime, and the
runtime over the other settings; limits of a runtime apply in addition to those of the settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from mptraining_api.accelerators import chips_per_pod, lookup, pods
from mptraining_api.admin_limits import JobLimits
from mptraining_api.pods.fields import PodTemplate
from mptraining_api.pods.merge import merge
from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.alternatives import FIELD, describe
from mptraining_api.resolve.runtime_settings import Runtime
from mptraining_api.resolved_job import Choice, ResolvedRuntime
from mptraining_api.spec import NO_RUNTIME, Accelerator, Machine, MPTrainingJob, Provisioning
from mptraining_api.status import RuntimeMachine

M = TypeVar("M", bound=Machine)
Runtimes = Mapping[str, Runtime]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The job with what its runtime adds, the runtime, and the reasons."""

    job: MPTrainingJob
    runtime: Runtime
    resolved: ResolvedRuntime | None
    choices: tuple[Choice, ...]
    # Alternatives that the runtime offers to the job, with their indices there; `with_alternatives` adds those that
    # suit it.
    alternatives: Mapping[Machine, int] = field(default_factory=lambda: MappingProxyType({}))


def with_runtime(job: MPTrainingJob, runtimes: Runtimes | None, defaults: Mapping[str, str]) -> Chosen:
    """Return the job with the fields of its runtime. `runtimes` None: this process does not know them.

    Raises InvalidSpec for a runtime that does not exist, with the names of those that do.
    """
    spec = job.spec
    name = spec.runtime or defaults.get(job.metadata.namespace or "")
    if name is None or name == NO_RUNTIME:
        return Chosen(job=job, runtime=Runtime(), resolved=None, choices=())
    if runtimes is None:
        because = "known to the cluster only: its pod settings, images and output are not checked here"
        choice = Choice(field="spec.runtime", value=name, because=because)
        return Chosen(job=job, runtime=Runtime(), resolved=None, choices=(choice,))
    runtime = runtimes.get(name)
    if runtime is None:
        raise InvalidSpec(
            "spec.runtime",
            f"{name!r} is no runtime of this cluster",
            expected=f"one of {', '.join(sorted(runtimes))}" if runtimes else "no runtime, since it has none",
            next_step="`mptj runtimes` lists them.",
        )
    source = "given in the job" if spec.runtime else f"of the namespace {job.metadata.namespace!r}"
    choices = [Choice(field="spec.runtime", value=name, because=source), *_reasons(job, runtime, name)]
    template = spec.pod_template
    if runtime.pod_template is not None:
        template = merge(runtime.pod_template, template or PodTemplate())
    accelerator = _provided(spec.accelerator, runtime)
    if accelerator.alternatives:
        others = [_provided(each, runtime) for each in accelerator.alternatives]
        accelerator = accelerator.model_copy(update={"alternatives": others})
    merged = spec.model_copy(update={"pod_template": template, "accelerator": accelerator})
    return Chosen(
        job=job.model_copy(update={"spec": merged}),
        runtime=runtime,
        resolved=ResolvedRuntime(name=name, pod_template=template),
        choices=tuple(choices),
        alternatives=_offered(spec.accelerator, accelerator, runtime),
    )


def alternatives_of(runtime: Runtime, asked_for: Machine | None = None) -> tuple[Machine, ...]:
    """Return the alternatives of a runtime, each with its provisioning.

    Without one of its own it is that of the first choice that a job has `asked_for`, else the runtime's. A job that
    asks for machines that stay, by OnDemand or a reservation, gets no others unless they say so.
    """
    own = asked_for.provisioning if asked_for else None
    if own == Provisioning.RESERVATION:
        own = Provisioning.ON_DEMAND
    update = {"provisioning": own}
    found = runtime.alternatives or ()
    open_ = [each if own is None or _is_provided(each) else each.model_copy(update=update) for each in found]
    return tuple(_provided(each, runtime) for each in open_)


def _offered(asked_for: Accelerator, first: Accelerator, runtime: Runtime) -> dict[Machine, int]:
    """Return the alternatives of the runtime to `first`, which is `asked_for` with the runtime's provisioning."""
    if first.type == "cpu" or first.alternatives:
        return {}
    same = Machine(**{name: getattr(first, name) for name in Machine.model_fields} | {"try_for_seconds": None})
    others = alternatives_of(runtime, asked_for)
    found: dict[Machine, int] = {}
    for index, each in enumerate(others):
        if each.model_copy(update={"try_for_seconds": None}) != same:
            found.setdefault(each, index)
    return found


def outside_limits(machine: Machine, limits: JobLimits, name: str, runtime: Runtime) -> str | None:
    """Return why an alternative of the runtime `name` is outside the limits of today; None inside them."""
    try:
        kind = lookup(machine.type)
        # Other machines are as many as the first choice's.
        shape = machine.topology
        nodes = pods(shape, machine.count_per_node or chips_per_pod(kind, shape)[0]) if shape else None
    except InvalidSpec as problem:
        return problem.found
    for path, each in (("limits", limits), (f"runtimes.{name}.limits", runtime.limits)):
        if each.accelerators and machine.type not in each.accelerators:
            return f"it is outside {path}.accelerators"
        most = {"nodesPerJob": each.nodes_per_job}
        if isinstance(each, JobLimits):
            most["nodesPerNamespace"] = each.nodes_per_namespace
        for limit, count in most.items():
            if nodes is not None and count is not None and nodes > count:
                return f"its {nodes} nodes are more than {path}.{limit} allows"
    return None


def with_alternatives(chosen: Chosen, kept: Sequence[Machine], left_out: Sequence[tuple[Machine, str]]) -> Chosen:
    """Return the job with the alternatives of its runtime that suit it; `left_out` are the others with the reasons."""
    if chosen.resolved is None:
        return chosen
    name = chosen.resolved.name
    because = f"from the runtime {name}"
    choices = [
        Choice(field=FIELD, value="none", because=f"{because}, {describe(machine)} does not suit: {why}")
        for machine, why in left_out
    ]
    if not kept:
        return replace(chosen, choices=(*chosen.choices, *choices))
    update = {"alternatives": list(kept), "try_for_seconds": chosen.runtime.try_for_seconds}
    accelerator = chosen.job.spec.accelerator.model_copy(update=update)
    tried = [(accelerator, None), *((machine, chosen.alternatives[machine]) for machine in kept)]
    machines = [
        RuntimeMachine(**{each: getattr(machine, each) for each in Machine.model_fields}, runtime=name, alternative=at)
        for machine, at in tried
    ]
    spec = chosen.job.spec.model_copy(update={"accelerator": accelerator})
    value = ", ".join(describe(each) for each in kept)
    return replace(
        chosen,
        job=chosen.job.model_copy(update={"spec": spec}),
        resolved=chosen.resolved.model_copy(update={"machines": tuple(machines)}),
        choices=(*chosen.choices, Choice(field=FIELD, value=value, because=because), *choices),
    )


def _provided(machine: M, runtime: Runtime) -> M:
    """Return the machine with the provisioning of the runtime, if the job leaves it open."""
    impossible = machine.type == "cpu" and runtime.provisioning == "FlexStart"
    if runtime.provisioning is None or _is_provided(machine) or impossible:
        return machine
    return machine.model_copy(update={"provisioning": Provisioning(runtime.provisioning)})


def _is_provided(machine: Machine) -> bool:
    return machine.provisioning is not None


def _reasons(job: MPTrainingJob, runtime: Runtime, name: str) -> list[Choice]:
    """Return a choice for each field that the runtime decides or adds to."""
    because = f"from the runtime {name}"
    written = job.spec.pod_template.to_document() if job.spec.pod_template else {}
    found = []
    for key, value in (runtime.pod_template.to_document() if runtime.pod_template else {}).items():
        # Only names: values may be long, and variables of an environment private.
        text = str(value) if isinstance(value, str) else ", ".join(_names(value))
        if key in written and isinstance(value, str):
            continue
        reason = f"{because}, with the job's own" if key in written else because
        found.append(Choice(field=f"spec.podTemplate.{key}", value=text, because=reason))
    if runtime.provisioning is not None and _provided(job.spec.accelerator, runtime) is not job.spec.accelerator:
        found.append(Choice(field="spec.accelerator.provisioning", value=runtime.provisioning, because=because))
    return found


def _names(value: object) -> list[str]:
    if isinstance(value, dict):
        return [str(key) for key in value]
    keys = ("name", "key", "mountPath", "topologyKey")
    items = value if isinstance(value, list) else []
    return [next((str(each[key]) for key in keys if each.get(key)), "…") for each in items if isinstance(each, dict)]

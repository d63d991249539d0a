"""The accelerator of a replica: from the resources of its container, and from the labels that select its nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mptraining.tfjob.fields import Report, Section
from mptraining_api.accelerators import canonical_name, catalogue, lookup
from mptraining_api.machines.node_labels import NodeKind, accelerator_of, platforms
from mptraining_api.problems import InvalidSpec
from mptraining_api.validation.mistakes import FieldPath, field_text

_GPU, _TPU = "nvidia.com/gpu", "google.com/tpu"
_TPU_TOPOLOGY = "cloud.google.com/gke-tpu-topology"
# Kubernetes' documentation of GPUs used this label in its example before platforms had their own.
_OLD_LABEL = "accelerator"
_OTHER_DEVICES = ("nvidia.com/", "amd.com/", "gpu.intel.com/", "cloud-tpus.google.com/", "aliyun.com/")


def devices(resources: Section, into: dict[str, Any], report: Report) -> tuple[str, int] | None:
    """Return the resource of the accelerators with their number; None for a CPU. Other resources are carried over."""
    found: dict[str, int] = {}
    for part in ("requests", "limits"):
        section = resources.section(part)
        kept: dict[str, Any] = {}
        for name in section.names():
            if name in (_GPU, _TPU):
                value = section.take(name, object, "")
                if str(value).isdigit():
                    found[name] = max(found.get(name, 0), int(value))
                    section.carried(name, "spec.accelerator")
                else:
                    report.refuse(section.at(name), f"{value!r}", expected="a whole number of accelerators")
            elif name.startswith(_OTHER_DEVICES):
                step = "`mptj accelerators` lists those that there are; a part of a GPU is accelerator.partition."
                section.refuse(name, "a device that jobs do not have", next_step=step)
            else:
                section.carry(name, f"spec.podTemplate.resources.{part}.{name}", kept)
        if kept:
            into[part] = kept
    resources.end(("claims",))
    chosen = {name: number for name, number in found.items() if number}
    return next(iter(chosen.items()), None)


def accelerator(
    wanted: tuple[str, int] | None,
    selector: dict[str, str],
    affinity: object,
    where: FieldPath,
    chosen: str | None,
    report: Report,
) -> dict[str, Any]:
    """Return `spec.accelerator`. The labels that it replaces are removed from `selector`."""
    if wanted is None:
        if chosen not in (None, "cpu"):
            report.decide("spec.accelerator", f"{chosen}, by --accelerator; the TFJob requests no device")
            return {"type": canonical_name(chosen or ""), "countPerNode": 1}
        if chosen is None:
            report.decide("spec.accelerator", "cpu, since no container requests nvidia.com/gpu or google.com/tpu")
        return {"type": "cpu"}
    resource, count = wanted
    labels = {**dict(_required_labels(affinity)), **selector}
    found: dict[str, Any] = {"type": _type(labels, where, chosen, report)}
    if resource == _TPU:
        if _TPU_TOPOLOGY in labels:
            found["topology"] = labels[_TPU_TOPOLOGY]
    else:
        found["countPerNode"] = count
    replaced = {_TPU_TOPOLOGY, _OLD_LABEL} | {
        label for kind in _kinds() for about in kind.accelerators.values() for label in (about["label"],)
    }
    for kind in _kinds():
        spot = kind.provisioning.get("Spot", {})
        if spot and all(labels.get(key) == value for key, value in spot.items()):
            found["provisioning"] = "Spot"
            replaced |= set(spot)
    for name in replaced & set(selector):
        report.decide("spec.accelerator", f"nodeSelector {name}: {selector.pop(name)} is what it stands for")
    return found


def _type(labels: Mapping[str, str], where: FieldPath, chosen: str | None, report: Report) -> str:
    if chosen is not None:
        report.decide("spec.accelerator.type", f"{chosen}, by --accelerator")
        return canonical_name(chosen)
    found = accelerator_of(labels) or labels.get(_OLD_LABEL)
    step = "Say which GPU it is: --accelerator t4 (`mptj accelerators` lists them)."
    if found is None:
        problem = InvalidSpec(
            field_text(where),
            "requests accelerators, and no nodeSelector names their type",
            expected="a type, which decides the precision policy",
            next_step=step,
        )
        report.refused.append(problem)
        return "cpu"
    try:
        return lookup(found).name
    except InvalidSpec:
        names = ", ".join(each.name for each in catalogue().values() if each.kind == "gpu")
        problem = InvalidSpec(
            field_text(where), f"the nodes' accelerator is {found!r}", expected=f"one of {names}", next_step=step
        )
        report.refused.append(problem)
        return "cpu"


def _kinds() -> Iterator[NodeKind]:
    for platform in platforms().values():
        yield from platform.nodes


def _required_labels(affinity: object) -> Iterator[tuple[str, str]]:
    """Yield the labels with one value that the node affinity requires."""
    place: object = affinity
    for name in ("nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"):
        place = place.get(name) if isinstance(place, Mapping) else None
    terms = place if isinstance(place, list) else []
    for term in terms if len(terms) == 1 else []:
        expressions = term.get("matchExpressions") if isinstance(term, Mapping) else None
        for each in expressions if isinstance(expressions, list) else []:
            values = each.get("values") if isinstance(each, Mapping) else None
            if isinstance(values, list) and len(values) == 1 and each.get("operator") == "In":
                yield str(each.get("key")), str(values[0])

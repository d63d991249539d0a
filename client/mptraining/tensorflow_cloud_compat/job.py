"""From `tensorflow_cloud.run`'s arguments to the document of an MPTrainingJob."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mptraining.tensorflow_cloud_compat.arguments import InvalidArgument, RunArguments
from mptraining_api import accelerators
from mptraining_api.tensorflow_cloud.machine_configs import CATALOGUE, AcceleratorType, MachineConfig

API_VERSION = "mptraining.dev/v1alpha1"
KIND = "MPTrainingJob"
# A pod's name has the job's, an attempt and an index in it (`mptraining_api.spec.JOB_NAME`).
_MOST_LETTERS = 50


def document(
    arguments: RunArguments,
    *,
    name: str,
    program: Mapping[str, Any],
    output: str | None = None,
    spec: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The job as a mapping for YAML, without its source. `spec` has the last word, section by section.

    Raises InvalidArgument for a TPU of a size that no machine has.
    """
    metadata: dict[str, Any] = {"name": name}
    if arguments.labels:
        metadata["labels"] = dict(arguments.labels)
    decided: dict[str, Any] = {"accelerator": _accelerator(arguments.machine)}
    if arguments.nodes > 1:
        decided["nodes"] = arguments.nodes
    if not arguments.distributed:
        decided["strategy"] = "None"
    decided["program"] = dict(program)
    if output:
        decided["output"] = {"uri": output}
    template = _pod_template(arguments)
    if template:
        decided["podTemplate"] = template
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata,
        "spec": merged(decided, spec or {}),
    }


def job_name(stem: str, token: str) -> str:
    """A DNS label that begins with `stem` as far as its letters allow, and ends with `token`."""
    words = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    if not words or not words[0].isalpha():
        words = f"job-{words}".rstrip("-")
    return f"{words[: _MOST_LETTERS - len(token) - 1].rstrip('-')}-{token}"


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with what `over` says instead, mapping by mapping; None takes a field away."""
    result = dict(base)
    for key, value in over.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result


def _accelerator(machine: MachineConfig) -> dict[str, Any]:
    kind, count = machine.accelerator, machine.accelerator_count
    found: dict[str, Any] = {"type": CATALOGUE[kind]}
    if kind.is_tpu:
        found["topology"] = _topology(machine)
    elif kind is not AcceleratorType.NO_ACCELERATOR:
        found["countPerNode"] = count
    elif count > 1:
        # Logical devices, which tensorflow-cloud does not know.
        found["countPerNode"] = count
    return found


def _topology(machine: MachineConfig) -> str:
    """The slice of one machine with so many cores (v3, two on a chip) or chips."""
    type = accelerators.lookup(CATALOGUE[machine.accelerator])
    on_one_host = {
        accelerators.chips(name) * type.replicas_per_device: name
        for name, chips in type.topologies.items()
        if accelerators.chips(name) in chips
    }
    found = on_one_host.get(machine.accelerator_count)
    if found is None:
        raise InvalidArgument(
            f"Invalid `worker_config` input. No machine has accelerator_count={machine.accelerator_count} "
            f"of {type.title}.",
            next_step=f"There are {', '.join(str(each) for each in sorted(on_one_host))}.",
        )
    return found


def _pod_template(arguments: RunArguments) -> dict[str, Any]:
    template: dict[str, Any] = {}
    if arguments.image:
        template["image"] = arguments.image
    if arguments.service_account:
        # Workload Identity: a Kubernetes account of that name, annotated with the whole address, acts for it.
        template["serviceAccountName"] = arguments.service_account.partition("@")[0]
    if arguments.labels:
        template["labels"] = dict(arguments.labels)
    machine = arguments.machine
    if arguments.custom_shape and not machine.accelerator.is_tpu:
        requests: dict[str, Any] = {}
        if machine.cpu_cores is not None:
            requests["cpu"] = machine.cpu_cores
        if machine.memory is not None:
            requests["memory"] = f"{round(machine.memory * 1000)}M"
        if requests:
            template["resources"] = {"requests": requests}
    return template

"""MPTrainingJob document from the arguments of `tensorflow_cloud.run`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mptraining.tensorflow_cloud_compat.arguments import InvalidArgument, RunArguments
from mptraining_api import accelerators
from mptraining_api.spec import API_VERSION, KIND
from mptraining_api.tensorflow_cloud.machine_configs import CATALOGUE, AcceleratorType, MachineConfig

# Pod names append attempt, index and a random suffix to the job's name (`mptraining_api.spec.JOB_NAME`).
_MOST_LETTERS = 50


def document(
    arguments: RunArguments,
    *,
    name: str,
    program: Mapping[str, Any],
    output: str | None = None,
    spec: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the job as a mapping for YAML, without `spec.source`. Fields of `spec` take precedence.

    Raises InvalidArgument for a TPU size that no machine has.
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
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": merge(decided, spec or {})}


def job_name(stem: str, token: str) -> str:
    """Return a DNS label from `stem` (invalid characters replaced, truncated) and the suffix `token`."""
    words = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    if not words or not words[0].isalpha():
        words = f"job-{words}".rstrip("-")
    return f"{words[: _MOST_LETTERS - len(token) - 1].rstrip('-')}-{token}"


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `over` into `base` recursively; None removes a field."""
    result = dict(base)
    for key, value in over.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merge(result[key], value)
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
        # Logical CPU devices; tensorflow-cloud has no equivalent.
        found["countPerNode"] = count
    return found


def _topology(machine: MachineConfig) -> str:
    """Return the topology of the single-host slice with that number of chips, or cores (v3: two per chip)."""
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
        # Workload Identity: the Kubernetes service account of that name is annotated with the full address.
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

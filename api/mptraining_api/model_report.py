"""Report on a model under precision policies (`mptj check --deep`): layers, padding, memory, largest batch size.

The trainer inspects the model and sends the facts (`ModelFacts`); `report` only calculates. Memory is an estimate: the
activations kept for the backward pass, and the gradients of the largest layer's input and output. Compared with the
peak memory of one float32 step on a CPU (TensorFlow 2.21), it gives 71.6 MB per example instead of 70.9 for MobileNetV2
at 224x224, and 102 kB instead of 122 for a chain of four layers of 4,096 units. Temporary buffers of single operations
are not included; the part of the memory that `ROOM` excludes is for them.
"""

from __future__ import annotations

import math

from mptraining_api import accelerators
from mptraining_api.model import Model
from mptraining_api.resolved_job import ResolvedJob


class LayerFacts(Model):
    """One layer that computes, in the order of the computation.

    `output_shape` is the shape of one example. `inputs` and `outputs` are the widths of its matrix multiplication
    (units, channels; None without one), `multiply_adds` its multiply-add operations for one example.
    """

    name: str
    kind: str
    compute: str
    output: str
    output_shape: tuple[int | None, ...]
    parameters: int
    # None for a layer without variables.
    variables: str | None = None
    inputs: int | None = None
    outputs: int | None = None
    multiply_adds: int = 0
    softmax: bool = False


class PolicyFacts(Model):
    """The model under one precision policy.

    `activations` are the bytes per example that the forward pass keeps for the backward pass; `copies` the bytes kept
    once, such as weights in the compute dtype. `output` is the dtype of the model's output; `softmax` names the softmax
    operations below float32 that are no layer's activation, with their dtype.
    """

    policy: str
    layers: tuple[LayerFacts, ...]
    output: str
    output_layer: str
    activations: int
    copies: int
    softmax: tuple[str, ...] = ()


class ModelFacts(Model):
    """A model as the job trains it. Sizes are bytes of one replica; `slots` are the optimizer's variables."""

    name: str
    keras: str
    parameters: int
    trainable: int
    weights: int
    slots: int
    gradients: int
    policies: tuple[PolicyFacts, ...]
    # Layers with loops, which keep more than was counted.
    uncounted: tuple[str, ...] = ()


# The usable fraction of a device's memory; the rest is for the driver, the workspaces of libraries and fragmentation.
# The value is an assumption of this project and was not measured.
ROOM = 0.9
# The matrix units of GPUs and TPUs are best used by batch sizes that are multiples of 8.
BATCH_MULTIPLE = 8


class LayerReport(Model):
    """One layer. `padding` lists the padded widths (`30 -> 32`); `padding_cost` is the fraction of multiplications that
    it adds to the layer.
    """

    name: str
    kind: str
    compute: str
    output: str
    output_shape: tuple[int | None, ...]
    parameters: int
    variables: str | None = None
    output_bytes: int | None = None
    multiply_adds: int = 0
    padding: str | None = None
    padding_cost: float = 0.0


class Memory(Model):
    """Bytes of one replica under one policy; `batch_size` is the largest that fits on the device, None if unknown.

    `working_per_example` is the size of the gradients of the largest layer's input and output.
    """

    policy: str
    weights: int
    slots: int
    gradients: int
    copies: int
    activations_per_example: int
    working_per_example: int
    batch_size: int | None


class Report(Model):
    """`kept_float32` are layers that compute in float32 under a mixed policy.

    `softmax_not_float32` and `output_not_float32` name what to change. `padding_cost` is that of the whole model.
    `memory` begins with float32.
    """

    model: str
    policy: str
    multiple: int
    layers: tuple[LayerReport, ...]
    parameters: int
    trainable: int
    kept_float32: tuple[str, ...]
    softmax_not_float32: tuple[str, ...]
    output_not_float32: tuple[str, ...]
    padding_cost: float
    device: str
    device_bytes: int | None
    memory: tuple[Memory, ...]
    batch_size: int | None
    uncounted: tuple[str, ...]


def mixed_policy(job: ResolvedJob) -> str | None:
    """Return the mixed policy to compare with float32: the job's, else the accelerator's first; None if it has none."""
    if job.precision.policy.startswith("mixed_"):
        return job.precision.policy
    accelerator = accelerators.lookup(job.accelerator.type)
    known = [policy for policy in accelerator.policies if policy.startswith("mixed_")]
    if accelerator.kind == "cpu":
        # Every CPU emulates float16; only CPUs without the instructions emulate bfloat16.
        return "mixed_bfloat16"
    # GPUs below compute capability 7.0 have no Tensor Cores, but a mixed policy still saves memory.
    return known[0] if known else None


def report(facts: ModelFacts, job: ResolvedJob) -> Report:
    """Return the report on the policy of the job (on the mixed policy for Measure)."""
    accelerator = accelerators.lookup(job.accelerator.type)
    by_policy = {each.policy: each for each in facts.policies}
    shown = by_policy.get(job.precision.policy) or facts.policies[-1]
    rows = tuple(_layers(shown, accelerator.multiple))
    mixed = shown.policy.startswith("mixed_")
    device = None if accelerator.memory_gib is None else accelerator.memory_gib * 2**30
    needed = sum(layer.multiply_adds for layer in shown.layers)
    done = sum(layer.multiply_adds * (1 + row.padding_cost) for layer, row in zip(shown.layers, rows, strict=True))
    return Report(
        model=facts.name,
        policy=shown.policy,
        multiple=accelerator.multiple,
        layers=rows,
        parameters=facts.parameters,
        trainable=facts.trainable,
        kept_float32=tuple(layer.name for layer in shown.layers if mixed and layer.compute == "float32"),
        softmax_not_float32=tuple(
            f"{layer.name} ({layer.compute})" for layer in shown.layers if layer.softmax and layer.compute != "float32"
        )
        + shown.softmax,
        output_not_float32=() if shown.output == "float32" else (f"{shown.output_layer} ({shown.output})",),
        padding_cost=done / needed - 1 if needed else 0.0,
        device=accelerator.title,
        device_bytes=device,
        memory=tuple(_memory(facts, each, device) for each in facts.policies),
        batch_size=job.per_replica_batch_size,
        uncounted=facts.uncounted,
    )


def padded(width: int, multiple: int) -> int:
    """Return `width` rounded up to a multiple of `multiple`."""
    return -(-width // multiple) * multiple


def largest_batch(device_bytes: int, fixed: int, each: int) -> int:
    """Return the number of examples of `each` bytes that fit beside `fixed` bytes.

    A number of at least BATCH_MULTIPLE is rounded down to a multiple of it.
    """
    free = math.floor(device_bytes * ROOM) - fixed
    if free <= 0 or each <= 0:
        return 0
    size = free // each
    return size - size % BATCH_MULTIPLE if size >= BATCH_MULTIPLE else size


def _layers(facts: PolicyFacts, multiple: int) -> list[LayerReport]:
    multiplying = [layer for layer in facts.layers if layer.inputs is not None]
    rows = []
    for layer in facts.layers:
        # The user cannot choose the first layer's input width (the data) and the last one's output width (the classes).
        first, last = multiplying[:1] == [layer], multiplying[-1:] == [layer]
        padding, cost = _padding(layer, multiple, first=first, last=last)
        rows.append(
            LayerReport(
                name=layer.name,
                kind=layer.kind,
                compute=layer.compute,
                variables=layer.variables,
                output=layer.output,
                output_shape=layer.output_shape,
                parameters=layer.parameters,
                output_bytes=_bytes(layer),
                multiply_adds=layer.multiply_adds,
                padding=padding,
                padding_cost=cost,
            )
        )
    return rows


def _padding(layer: LayerFacts, multiple: int, *, first: bool, last: bool) -> tuple[str | None, float]:
    widths = [
        (name, width)
        for name, width, fixed in (("in", layer.inputs, first), ("out", layer.outputs, last))
        if width is not None and not fixed and width % multiple
    ]
    if not widths:
        return None, 0.0
    cost = math.prod(padded(width, multiple) / width for _, width in widths) - 1
    return ", ".join(f"{name} {width} -> {padded(width, multiple)}" for name, width in widths), cost


def _memory(facts: ModelFacts, policy: PolicyFacts, device: int | None) -> Memory:
    fixed = facts.weights + facts.slots + facts.gradients + policy.copies
    working = 2 * max((_bytes(layer) or 0 for layer in policy.layers), default=0)
    return Memory(
        policy=policy.policy,
        weights=facts.weights,
        slots=facts.slots,
        gradients=facts.gradients,
        copies=policy.copies,
        activations_per_example=policy.activations,
        working_per_example=working,
        batch_size=None if device is None else largest_batch(device, fixed, policy.activations + working),
    )


_SIZES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "uint8": 1, "bool": 1}


def _bytes(layer: LayerFacts) -> int | None:
    """Return the bytes of the layer's output for one example; None if its size varies or its dtype is unknown."""
    if any(size is None for size in layer.output_shape) or layer.output not in _SIZES:
        return None
    return math.prod(size for size in layer.output_shape if size is not None) * _SIZES[layer.output]

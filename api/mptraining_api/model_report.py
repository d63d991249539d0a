"""What a precision policy does to a model, computed from what the trainer found in it: `mptj check --deep`.

Pure arithmetic over `inspected`. Memory is an estimate: what must be kept between the passes and, while the backward
pass goes through the largest layer, the gradients of its input and output. Held against the peak memory of one
float32 step on a CPU (TensorFlow 2.21): MobileNetV2 at 224x224 71.6 MB an example where 70.9 were used, a chain of
four layers of 4,096 units 102 kB where 122 were. The short-lived buffers of single operations come on top; `ROOM` is
left for them.
"""

from __future__ import annotations

import math

from mptraining_api import accelerators
from mptraining_api.model import Model
from mptraining_api.resolved_job import ResolvedJob


class LayerFacts(Model):
    """One layer that computes, in the order of the computation.

    `output_shape` is that of one example. `inputs` and `outputs` are the widths of its matrix multiplication (units,
    channels; None where there is none), `multiply_adds` those of one example.
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

    `activations` are the bytes that the backward pass needs of the forward pass for each example; `copies` those that
    it needs once, such as weights in the compute dtype. `output` is the dtype of the model's output, `softmax` names
    those below float32 that are no layer's activation, with their dtype.
    """

    policy: str
    layers: tuple[LayerFacts, ...]
    output: str
    output_layer: str
    activations: int
    copies: int
    softmax: tuple[str, ...] = ()


class ModelFacts(Model):
    """A model as the job trains it. Bytes are those of one replica; `slots` are the optimizer's."""

    name: str
    keras: str
    parameters: int
    trainable: int
    weights: int
    slots: int
    gradients: int
    policies: tuple[PolicyFacts, ...]
    # Layers in whose loops more is kept than was counted.
    uncounted: tuple[str, ...] = ()


# Of a device's memory, what training may plan with: the driver, the libraries' workspaces and fragmentation take the
# rest. A tenth is this project's own allowance and was not measured.
ROOM = 0.9
# A batch is cut for the matrix units in steps of 8, on GPUs and TPUs.
BATCH_MULTIPLE = 8


class LayerReport(Model):
    """One layer. `padding` says which widths are padded (`30 -> 32`), `padding_cost` what that adds to the layer's
    multiplications: 0.1 for a tenth more.
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

    `working` are the gradients of the largest layer's input and output.
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
    """`kept_float32` are layers that compute in float32 under a mixed policy; the other lists name what to change.

    `padding_cost` is over the whole model. `memory` is of float32 first.
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
    """The mixed policy to hold against float32: the job's, else the one its accelerator computes best."""
    if job.precision.policy.startswith("mixed_"):
        return job.precision.policy
    accelerator = accelerators.lookup(job.accelerator.type)
    known = [policy for policy in accelerator.policies if policy.startswith("mixed_")]
    if accelerator.kind == "cpu":
        # float16 is emulated on every CPU, bfloat16 on those without instructions for it.
        return "mixed_bfloat16"
    # Below 7.0 there are no Tensor Cores, but memory is saved all the same.
    return known[0] if known else None


def report(facts: ModelFacts, job: ResolvedJob) -> Report:
    """The report on the policy that the job trains under (for Measure: the mixed one)."""
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
    """The next multiple."""
    return -(-width // multiple) * multiple


def largest_batch(device_bytes: int, fixed: int, each: int) -> int:
    """Examples that fit beside `fixed` bytes, rounded down to BATCH_MULTIPLE where there are that many; 0 for none."""
    room = math.floor(device_bytes * ROOM) - fixed
    if room <= 0 or each <= 0:
        return 0
    fits = room // each
    return fits - fits % BATCH_MULTIPLE if fits >= BATCH_MULTIPLE else fits


def _layers(facts: PolicyFacts, multiple: int) -> list[LayerReport]:
    multiplying = [layer for layer in facts.layers if layer.inputs is not None]
    rows = []
    for layer in facts.layers:
        # What goes into the first layer is the data, what comes out of the last is the number of classes.
        free = (multiplying[:1] == [layer], multiplying[-1:] == [layer])
        padding, cost = _padding(layer, multiple, first=free[0], last=free[1])
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
        for name, width, free in (("in", layer.inputs, first), ("out", layer.outputs, last))
        if width is not None and not free and width % multiple
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
    """Of the layer's output for one example; None where its size varies."""
    if any(size is None for size in layer.output_shape) or layer.output not in _SIZES:
        return None
    return math.prod(size for size in layer.output_shape if size is not None) * _SIZES[layer.output]

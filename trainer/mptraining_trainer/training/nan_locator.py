"""Locator of the first infinite or NaN tensor: runs the bad batch again, eagerly, and checks each tensor.

The bad step was skipped, so weights, statistics and seeds are those before it. The order of the checks: weights,
inputs, each layer's output, variables that the forward pass updated (moving statistics), the loss, the gradients from
the last layer to the first. The result names the records if a few of them cause it, else all examples of the step.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import tensorflow as tf

from mptraining_records.reading.order import Position
from mptraining_trainer.distribution.coordination import gather_over_workers
from mptraining_trainer.loop.step import ReplicaStep
from mptraining_trainer.numerics.recovery import NonFinite
from mptraining_trainer.training.bad_rows import describe_records, find_suspects, locate_records
from mptraining_trainer.training.build import BuildResult

_KINDS = ("weight", "input", "activation", "statistic", "loss", "gradient")
_NEXT = {
    "weight": "An update before this step overflowed: lower the learning rate, or clip gradients (optimizer clipnorm).",
    "input": "Fix the records, or replace such values in data.preprocess.",
    "activation": "Lower the learning rate, normalize what goes into this layer, or give it dtype float32.",
    "statistic": "Look for huge values in the records (the variance of values above 1e19 is infinite), or limit them "
    "in data.preprocess.",
    "loss": "Look for logarithms or divisions of zero in the loss (from_logits: true avoids one).",
    "gradient": "Clip gradients (optimizer clipnorm), lower the learning rate, or look for square roots and norms of "
    "zero.",
}

# A replica's first non-finite tensor: the index of its kind in _KINDS, and its index among that kind.
Finding = tuple[int, int]


def locate_nan(built: BuildResult, incident: NonFinite) -> NonFinite:
    """Return the incident with its first step, layer and tensor, if the step shows them. Every worker must call it."""
    if incident.position is None:
        return incident
    begin = built.context.batching.next_step(incident.position)
    last = begin.examples + built.context.batching.examples_per_step - 1
    where = f"examples {begin.examples} to {last} of pass {begin.epoch + 1}"
    try:
        # This comes first, because the inspection changes moving statistics.
        records = find_suspects(built, begin).records if built.scaler is not None else ()
        if records:
            where = f"{describe_records(locate_records(built.context, records))}, among {where}"
        finding = _first_over_replicas(built, _inspect_replicas(built, begin))
    except (tf.errors.OpError, ValueError, TypeError, AttributeError, RuntimeError):
        # The location is optional, the incident is not: some models work only in graph mode.
        return incident
    if finding is None:
        return incident
    kind, text = _describe(built, finding)
    said = NonFinite(incident.step, f"{incident.found}; it began with {text} ({where})")
    said.next_step = _NEXT[kind]
    return said


def _inspect_replicas(built: BuildResult, position: Position) -> list[Finding | None]:
    """Return the finding of each replica of this worker."""
    context = built.context
    assert built.program.compiled is not None
    step = ReplicaStep(
        compiled=built.program.compiled,
        replicas=context.job.replicas,
        examples_per_step=context.batching.examples_per_step,
        accumulation=context.training.gradient_accumulation_steps,
        scaled=built.scaler is not None and built.scaler.scales,
        jit=False,
    )
    scale = built.scaler.scale.read_value() if built.scaler else tf.constant(1.0)
    found: dict[int, Finding | None] = {}
    with _record_outputs(built) as records:

        def on_replica(batch: Any, scale: Any) -> None:
            mask = batch[3] if built.loop.masked else None
            # Weights and inputs are checked before the forward pass, which changes moving statistics.
            checked = _check_weights_and_inputs(built, batch, mask)
            records.outputs = []
            loss, gradients = step.gradients(batch, scale, metrics=False)
            replica = int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group) or 0)
            checked |= {"activation": records.outputs, "loss": [(0, is_finite(loss))]}
            checked["statistic"] = list(enumerate(map(is_finite, _updated_by_calls(built))))
            checked["gradient"] = list(enumerate(map(is_finite, gradients)))[::-1]
            found[replica] = first_non_finite(checked)

        batch = built.loop.next_batch(built.make_iterator(position, 1))
        context.strategy.run(on_replica, args=(batch, scale))
    return list(found.values())


def _check_weights_and_inputs(built: BuildResult, batch: Any, mask: Any) -> dict[str, list[tuple[int, bool]]]:
    """Return (index, finite) of each weight and input before the step."""
    return {
        "weight": list(enumerate(map(is_finite, _weights(built)))),
        "input": list(enumerate(is_finite(_unmasked(tensor, mask)) for tensor in _inputs(batch))),
    }


def first_non_finite(checked: Mapping[str, Sequence[tuple[int, bool]]]) -> Finding | None:
    """Return the first tensor that is not finite, by kind and then by order; None if all are."""
    for number, kind in enumerate(_KINDS):
        for place, fine in checked[kind]:
            if not fine:
                return number, place
    return None


def is_finite(value: Any) -> bool:
    """Return whether no element is infinite or NaN; True for None and for types that are not floating-point."""
    if value is None:
        return True
    tensor = value.values if isinstance(value, tf.IndexedSlices) else tf.convert_to_tensor(value)
    return not tensor.dtype.is_floating or bool(tf.reduce_all(tf.math.is_finite(tensor)))


@contextmanager
def _record_outputs(built: BuildResult) -> Iterator[threading.local]:
    """Patch every layer, so that its call appends (index, finite) to the `outputs` of its thread's replica."""
    records = threading.local()
    patched = []

    def watch(layer: Any, place: int) -> None:
        call = layer.call

        def recording(*arguments: Any, **named: Any) -> Any:
            output = call(*arguments, **named)
            if hasattr(records, "outputs"):
                records.outputs.append((place, all(map(is_finite, tf.nest.flatten(output)))))
            return output

        object.__setattr__(layer, "call", recording)
        patched.append(layer)

    module = built.context.keras.module
    for place, layer in enumerate(_layers(built)):
        # A nested model's output is that of a layer inside it.
        if not isinstance(layer, module.Model) and not isinstance(layer, module.layers.InputLayer):
            watch(layer, place)
    try:
        yield records
    finally:
        for layer in patched:
            with suppress(AttributeError):
                object.__delattr__(layer, "call")


def _first_over_replicas(built: BuildResult, found: list[Finding | None]) -> Finding | None:
    """Return the first finding over all replicas of all workers, so that every worker reports the same."""
    context, identity = built.context, built.context.share
    own = min((finding for finding in found if finding is not None), default=None)
    if identity.workers == 1:
        return own
    said = [1, *own] if own is not None else [0, 0, 0]
    of_workers = gather_over_workers(context.strategy, identity.worker, identity.workers, said)
    return min(((kind, place) for there, kind, place in of_workers if there), default=None)


def _describe(built: BuildResult, finding: Finding) -> tuple[str, str]:
    """Return the kind and the description of a finding."""
    kind, place = _KINDS[finding[0]], finding[1]
    if kind == "input":
        names = sorted(each.name for each in built.context.example.inputs)
        return kind, f"the input {names[place]!r}"
    if kind == "loss":
        return kind, "the loss, from outputs that are finite"
    if kind == "statistic":
        return kind, f"the forward pass's update of {_updated_by_calls(built)[place].name.split(':')[0]!r}"
    if kind == "activation":
        layer = _layers(built)[place]
        return kind, f"the output of layer {layer.name!r} ({layer.compute_dtype}), whose weights are finite"
    variables = built.program.model.trainable_variables
    variable = _weights(built)[place] if kind == "weight" else variables[place]
    return kind, f"the {kind} {getattr(variable, 'path', variable.name)!r}"


def _layers(built: BuildResult) -> list[Any]:
    return built.context.keras.layers(built.program.model)


def _weights(built: BuildResult) -> list[Any]:
    return list(built.program.model.variables)


def _updated_by_calls(built: BuildResult) -> list[Any]:
    """Return the TensorFlow variables that a forward pass changes."""
    return list(built.context.keras.forward_pass_variables(built.program.model))


def _inputs(batch: Any) -> list[Any]:
    """Return the inputs, sorted by name as `tf.nest` sorts them."""
    return list(tf.nest.flatten(batch[0]))


def _unmasked(tensor: Any, mask: Any) -> Any:
    """Return the tensor without masked rows, whose values are arbitrary."""
    return tensor if mask is None else tf.boolean_mask(tensor, mask > 0)

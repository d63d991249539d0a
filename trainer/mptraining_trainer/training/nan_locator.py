"""Where numbers first stopped being finite: the batch that did it once more, eagerly, looked at piece by piece.

The step was left out, so weights, statistics and seeds are still those that it began with. Looked at in this order:
weights, inputs, each layer's output, what the forward pass moved (moving statistics), the loss, the gradients from the
last layer to the first. Where a few records do it by themselves they are named, else all examples of the step.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import tensorflow as tf

from mptraining_records.reading.order import Position
from mptraining_trainer.distribution.coordination import gathered
from mptraining_trainer.loop.step import ReplicaStep
from mptraining_trainer.numerics.recovery import NonFinite
from mptraining_trainer.training.bad_rows import described, located, suspects
from mptraining_trainer.training.build import BuildResult

_KINDS = ("weight", "input", "activation", "statistic", "loss", "gradient")
_NEXT = {
    "weight": "An update before this step overflowed: lower the learning rate, or clip gradients (optimizer clipnorm).",
    "input": "Mend the records, or replace such values in data.preprocess.",
    "activation": "Lower the learning rate, normalize what goes into this layer, or give it dtype float32.",
    "statistic": "Look for huge values in the records (the variance of values above 1e19 is infinite), or limit them "
    "in data.preprocess.",
    "loss": "Look for logarithms or divisions of zero in the loss (from_logits: true avoids one).",
    "gradient": "Clip gradients (optimizer clipnorm), lower the learning rate, or look for square roots and norms of "
    "zero.",
}

# What one replica found: the kind's place in _KINDS, and the place among the things of that kind.
Finding = tuple[int, int]


def locate_nan(built: BuildResult, incident: NonFinite) -> NonFinite:
    """The incident with step, layer and tensor where it began, if the step shows it. Every worker must call it."""
    if incident.position is None:
        return incident
    begin = built.context.batching.next_step(incident.position)
    last = begin.examples + built.context.batching.examples_per_step - 1
    where = f"examples {begin.examples} to {last} of pass {begin.epoch + 1}"
    try:
        # Before anything else, which changes statistics.
        records = suspects(built, begin).records if built.scaler is not None else ()
        if records:
            where = f"{described(located(built.context, records))}, among {where}"
        finding = _earliest(built, _inspected(built, begin))
    except (tf.errors.OpError, ValueError, TypeError, AttributeError, RuntimeError):
        # Where it began is worth less than that it happened: a model may do what only its graph can.
        return incident
    if finding is None:
        return incident
    kind, text = _in_words(built, finding)
    said = NonFinite(incident.step, f"{incident.found}; it began with {text} ({where})")
    said.next_step = _NEXT[kind]
    return said


def _inspected(built: BuildResult, position: Position) -> list[Finding | None]:
    """What each replica of this worker found."""
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
    with _recorded(built) as records:

        def on_replica(batch: Any, scale: Any) -> None:
            mask = batch[3] if built.loop.masked else None
            # Before the forward pass, which changes statistics.
            looked = _of_the_step(built, batch, mask)
            records.outputs = []
            loss, gradients = step.gradients(batch, scale, metrics=False)
            replica = int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group) or 0)
            looked |= {"activation": records.outputs, "loss": [(0, finite(loss))]}
            looked["statistic"] = list(enumerate(map(finite, _moved(built))))
            looked["gradient"] = list(enumerate(map(finite, gradients)))[::-1]
            found[replica] = first_of(looked)

        batch = built.loop.take(built.feed(position, 1))
        context.strategy.run(on_replica, args=(batch, scale))
    return list(found.values())


def _of_the_step(built: BuildResult, batch: Any, mask: Any) -> dict[str, list[tuple[int, bool]]]:
    """What the step begins with: (place, finite) of each weight and input."""
    return {
        "weight": list(enumerate(map(finite, _weights(built)))),
        "input": list(enumerate(finite(_counted(tensor, mask)) for tensor in _inputs(batch))),
    }


def first_of(looked: Mapping[str, Sequence[tuple[int, bool]]]) -> Finding | None:
    """The first thing that is not finite, by kind and then as they come."""
    for number, kind in enumerate(_KINDS):
        for place, fine in looked[kind]:
            if not fine:
                return number, place
    return None


def finite(value: Any) -> bool:
    """Whether no element is infinite or NaN; what is no number is fine, and so is nothing."""
    if value is None:
        return True
    tensor = value.values if isinstance(value, tf.IndexedSlices) else tf.convert_to_tensor(value)
    return not tensor.dtype.is_floating or bool(tf.reduce_all(tf.math.is_finite(tensor)))


@contextmanager
def _recorded(built: BuildResult) -> Iterator[threading.local]:
    """While it lasts, every layer's call appends (place, finite) to the `outputs` of its thread's replica."""
    records = threading.local()
    patched = []

    def watch(layer: Any, place: int) -> None:
        call = layer.call

        def recording(*arguments: Any, **named: Any) -> Any:
            output = call(*arguments, **named)
            if hasattr(records, "outputs"):
                records.outputs.append((place, all(map(finite, tf.nest.flatten(output)))))
            return output

        object.__setattr__(layer, "call", recording)
        patched.append(layer)

    module = built.context.keras.module
    for place, layer in enumerate(_layers(built)):
        # A container's output is that of a layer inside it.
        if not isinstance(layer, module.Model) and not isinstance(layer, module.layers.InputLayer):
            watch(layer, place)
    try:
        yield records
    finally:
        for layer in patched:
            with suppress(AttributeError):
                object.__delattr__(layer, "call")


def _earliest(built: BuildResult, found: list[Finding | None]) -> Finding | None:
    """Of all replicas of all workers, so that every worker says the same."""
    context, identity = built.context, built.context.share
    own = min((finding for finding in found if finding is not None), default=None)
    if identity.workers == 1:
        return own
    said = [1, *own] if own is not None else [0, 0, 0]
    everybody = gathered(context.strategy, identity.worker, identity.workers, said)
    return min(((kind, place) for there, kind, place in everybody if there), default=None)


def _in_words(built: BuildResult, finding: Finding) -> tuple[str, str]:
    """Kind and text."""
    kind, place = _KINDS[finding[0]], finding[1]
    if kind == "input":
        names = sorted(each.name for each in built.context.example.inputs)
        return kind, f"the input {names[place]!r}"
    if kind == "loss":
        return kind, "the loss, from outputs that are finite"
    if kind == "statistic":
        return kind, f"what the forward pass made of {_moved(built)[place].name.split(':')[0]!r}"
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


def _moved(built: BuildResult) -> list[Any]:
    """The TensorFlow variables that a forward pass changes."""
    return list(built.context.keras.updated_by_calls(built.program.model))


def _inputs(batch: Any) -> list[Any]:
    """The inputs, sorted by name as `tf.nest` sorts them."""
    return list(tf.nest.flatten(batch[0]))


def _counted(tensor: Any, mask: Any) -> Any:
    """Without the rows that are masked, which may hold anything."""
    return tensor if mask is None else tf.boolean_mask(tensor, mask > 0)

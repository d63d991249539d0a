"""The map over examples: an application's own over a batch, or a user's function over each example.

A user's function takes (inputs, labels) of one example and returns both; if it has the parameters `seed` (an int64
tensor [2] that depends only on the record's position and the pass, for `tf.image.stateless_random_…`) or `training` (a
bool), it receives them. So augmentation is the same after a resume and for any number of workers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from mptraining_api.problems import InvalidProgram
from mptraining_trainer.data.batch_spec import one_or_dict
from mptraining_trainer.data.schema import ExampleSpec, TensorSpec
from mptraining_trainer.report.error_text import describe_error, problem_in

FIELD = "spec.data.preprocess"


@dataclass(frozen=True)
class Preprocess:
    """The maps between decoding and the model; without functions, none."""

    per_example: Callable[..., Any] | None = None
    per_batch: Callable[[Any], Any] | None = None

    def map_examples(self, dataset: Any, *, training: bool, parallel: int) -> Any:
        """Map a dataset of examples (inputs, labels, weights, mask, seed), whose features are not padded."""
        if self.per_example is None:
            return dataset
        call = _caller(self.per_example, training)
        return dataset.map(
            lambda inputs, labels, weights, mask, seed: (*call(inputs, labels, seed), weights, mask, seed),
            num_parallel_calls=parallel,
            deterministic=True,
        )

    def map_batches(self, dataset: Any, *, parallel: int) -> Any:
        """Map a dataset of batches (inputs, …)."""
        per_batch = self.per_batch
        if per_batch is None:
            return dataset
        return dataset.map(
            lambda inputs, *rest: (scoped(per_batch, inputs), *rest), num_parallel_calls=parallel, deterministic=True
        )

    def example_after(self, example: ExampleSpec) -> ExampleSpec:
        """Return the spec of one example after the per-example function. Raises InvalidProgram if it fails."""
        if self.per_example is None:
            return example
        inputs, labels = (
            one_or_dict({tensor.name: tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors})
            for tensors in (example.inputs, example.labels)
        )
        call = _caller(self.per_example, training=True)
        seed = tf.TensorSpec([2], tf.int64)
        try:
            outputs = tf.function(call).get_concrete_function(inputs, labels, seed).structured_outputs
        except Exception as error:
            raise (
                problem_in(error)
                or InvalidProgram(FIELD, describe_error("the function failed on one example: it", error))
            ) from error
        new_inputs, new_labels = outputs
        return ExampleSpec(
            _named(new_inputs, example.inputs), _named(new_labels, example.labels), example.classes, example.weighted
        )


def check_signature(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function if it has the signature of `preprocess`. Raises InvalidProgram quoting its signature."""
    signature = inspect.signature(function)
    known = ("seed", "training")
    others = [parameter for name, parameter in signature.parameters.items() if name not in known]
    required = [
        other
        for other in others
        if other.default is other.empty and other.kind in (other.POSITIONAL_ONLY, other.POSITIONAL_OR_KEYWORD)
    ]
    if len(required) != 2:
        raise InvalidProgram(
            FIELD,
            f"{getattr(function, '__name__', function)}{signature}",
            expected="(inputs, labels[, seed][, training])",
        )
    return function


def _caller(function: Callable[..., Any], training: bool) -> Callable[..., Any]:
    names = inspect.signature(function).parameters

    def call(inputs: Any, labels: Any, seed: Any) -> tuple[Any, Any]:
        extra: dict[str, Any] = {}
        if "seed" in names:
            extra["seed"] = seed
        if "training" in names:
            extra["training"] = training
        returned = scoped(function, inputs, labels, **extra)
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            raise InvalidProgram(FIELD, f"the function returned {type(returned).__name__}", expected="(inputs, labels)")
        return returned[0], returned[1]

    return call


def scoped(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call the function in a name scope of the field, by which `report.errors` knows its errors in a graph."""
    with tf.name_scope(FIELD):
        return function(*arguments, **named)


def _named(outputs: Any, before: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Return the specs of the function's tensors by name: a dict's keys, or the previous names."""
    if isinstance(outputs, Mapping):
        return tuple(_spec(str(name), tensor) for name, tensor in outputs.items())
    tensors = tf.nest.flatten(outputs)
    names = [tensor.name for tensor in before]
    if len(tensors) != len(names):
        names = [f"{names[0] if names else 'tensor'}_{number}" for number in range(len(tensors))]
    return tuple(_spec(name, tensor) for name, tensor in zip(names, tensors, strict=True))


def _spec(name: str, tensor: Any) -> TensorSpec:
    if tensor.shape.rank is None:
        raise InvalidProgram(
            FIELD,
            f"the function returned {name!r} without a shape, as tf.numpy_function and tf.py_function do",
            expected="a tensor of known rank",
            next_step="Call tensor.set_shape([...]) with the shape of one example before the function returns it.",
        )
    return TensorSpec(name, tf.as_dtype(tensor.dtype).name, tuple(tensor.shape))

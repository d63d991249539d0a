"""Which feature is which input of a functional model, and in what structure `fit` would pass them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from mptraining_api.problems import InvalidProgram
from mptraining_trainer.data.example_spec import TensorSpec
from mptraining_trainer.keras_backend import Keras

_FEATURES = "spec.data.features"


def in_order(keras: Keras, model: Any, features: Sequence[TensorSpec]) -> tuple[str, ...] | None:
    """Names of the features in the order of the model's list of inputs; None for a model that takes them otherwise.

    By the names of the input layers or tensors where the features have these, else in their own order. Raises
    InvalidProgram for features that are not the inputs of a functional model, by number, name or shape.
    """
    inputs = getattr(model, "_nested_inputs" if keras.legacy else "_inputs_struct", None)
    given = {one.name: one for one in features}
    if isinstance(inputs, Mapping):
        if len(inputs) > 1 and not set(given) >= set(inputs):
            raise _refused(model, list(inputs), features, "they are a dict by other names")
        return None
    # Structures inside of structures are for Keras to judge.
    tensors: list[Any] = list(inputs) if isinstance(inputs, Sequence) else [inputs]
    if not all(hasattr(tensor, "_keras_history") for tensor in tensors):
        return None
    layers, named = [tensor._keras_history[0].name for tensor in tensors], [tensor.name for tensor in tensors]
    if len(tensors) != len(given):
        # As Keras takes a dict with more in it.
        if set(given) >= set(layers if keras.legacy else named):
            return None
        raise _refused(model, layers, features, f"{len(given)} for {len(tensors)}")
    if len(tensors) == 1:
        return None
    names = next((each for each in (layers, named) if set(each) == set(given)), list(given))
    for tensor, layer, name in zip(tensors, layers, names, strict=True):
        if layer != name and layer in given:
            raise _refused(model, layers, features, f"by their order {name!r} would be the input {layer!r}")
        if not _fits(tf.TensorShape(tensor.shape)[1:], tf.TensorShape(given[name].shape)):
            raise _refused(model, layers, features, f"{name!r} would be the input {layer!r} {list(tensor.shape[1:])}")
    return tuple(names)


def _fits(wanted: Any, given: Any) -> bool:
    # Keras adds and removes a last axis of size 1 by itself.
    if wanted.rank is None or given.rank is None or abs(wanted.rank - given.rank) == 1:
        return True
    return bool(wanted.is_compatible_with(given))


def _refused(model: Any, inputs: Sequence[str], features: Sequence[TensorSpec], why: str) -> InvalidProgram:
    found = ", ".join(f"{one.name} {list(one.shape)}" for one in features)
    return InvalidProgram(
        _FEATURES,
        f"{found or 'none'} do not fit the inputs of {type(model).__name__}: {why}",
        expected=f"{len(inputs)} features, {', '.join(inputs)}",
        next_step="Name the features as the model's inputs, or list as many in the order of its inputs.",
    )

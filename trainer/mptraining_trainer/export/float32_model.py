"""A script's trained model under float32, for the export: a copy of it, else the model itself, else nothing but arrays.

The trainer does not know which lines of a script build its model. What Keras can rebuild from its configuration, with
the script's own classes and functions, is rebuilt. Any other model is switched to float32 as it is: a mixed policy
keeps variables in float32 and decides only what layers compute in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from mptraining_trainer.export.layer_policies import policy_of
from mptraining_trainer.keras_backend import Keras


def rebuilt(model: Any, keras: Keras, config: Any, arrays: Sequence[Any]) -> Any:
    """A model from this configuration with these weights (arrays as `model.get_weights` gives them).

    Raises whatever Keras does when it cannot be rebuilt, ValueError when it has other weights.
    """
    with keras.module.utils.custom_object_scope(_own_objects(model, keras)):
        copy = type(model).from_config(config)
        if len(copy.weights) != len(arrays):
            # A subclass makes its variables when it is built, for the shapes that the trained one was built for.
            copy.build_from_config(model.get_build_config())
    if len(copy.weights) != len(arrays):
        raise ValueError(f"{len(copy.weights)} weights where the trained model has {len(arrays)}")
    copy.set_weights(list(arrays))
    return copy


def switched_to_float32(model: Any, keras: Keras) -> str:
    """Lets every layer of the model compute in float32; returns the policy that the layers then have."""
    for layer in keras.layers(model):
        policy = getattr(layer, "dtype_policy", None)
        if str(getattr(policy, "name", "")).startswith("mixed_"):
            if keras.legacy:
                layer._set_dtype_policy("float32")
            else:
                layer.dtype_policy = "float32"
    if model.variables and not model.built:
        # Its own train_step built its parts and never called it.
        model.built = True
    for traced in ("train_function", "test_function", "predict_function"):
        setattr(model, traced, None)
    return policy_of(model, keras)


def _own_objects(model: Any, keras: Keras) -> dict[str, Callable[..., Any]]:
    """Classes and functions of the script's that the model's layers are made of, by name.

    Keras looks them up in the module that defined them, which for a script was `__main__` and is gone.
    """
    found: dict[str, Callable[..., Any]] = {}
    for layer in keras.layers(model):
        for value in (type(layer), *vars(layer).values()):
            if isinstance(value, type | FunctionType) and not _is_keras(value):
                found[value.__name__] = value
    return found


def _is_keras(value: type | FunctionType) -> bool:
    return value.__module__.split(".", 1)[0] in ("keras", "tf_keras")

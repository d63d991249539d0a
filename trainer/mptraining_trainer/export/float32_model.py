"""Float32 form of a script's trained model for the export.

The trainer does not know which lines of a script build its model. A model that Keras can rebuild from its config, with
the script's own classes and functions, is rebuilt. Any other model is itself switched to float32: a mixed policy keeps
variables in float32 and affects only the compute dtype.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from mptraining_trainer.keras_backend import Keras


def policy_of(model: Any, keras: Keras) -> str:
    """Return the policy's name: float32, or the most common other policy of the model's layers.

    One layer that is not float32 makes the model mixed, since scripts set the output layer to float32 by hand.
    """
    names = [name for layer in keras.layers(model) if (name := _name(layer)) not in (None, "float32")]
    return str(Counter(names).most_common(1)[0][0]) if names else "float32"


def _name(layer: Any) -> str | None:
    policy = getattr(layer, "dtype_policy", None)
    name = getattr(policy, "name", None)
    # Layers on integers or strings, such as preprocessing layers, have no floating-point policy.
    return name if name is not None and ("float" in name) else None


def rebuild_from_config(model: Any, keras: Keras, config: Any, arrays: Sequence[Any]) -> Any:
    """Return a model from this configuration with these weights (in the order of `model.get_weights()`).

    Raise Keras' own error if it cannot be rebuilt, ValueError if it has other weights.
    """
    with keras.module.utils.custom_object_scope(_own_objects(model, keras)):
        copy = type(model).from_config(config)
        if len(copy.weights) != len(arrays):
            # A subclass creates its variables when it is built, here for the input shapes of the trained model.
            copy.build_from_config(model.get_build_config())
    if len(copy.weights) != len(arrays):
        raise ValueError(f"{len(copy.weights)} weights where the trained model has {len(arrays)}")
    copy.set_weights(list(arrays))
    return copy


def switch_to_float32(model: Any, keras: Keras) -> str:
    """Switch every layer of the model to float32; return the policy that the layers then have."""
    for layer in keras.layers(model):
        policy = getattr(layer, "dtype_policy", None)
        if str(getattr(policy, "name", "")).startswith("mixed_"):
            if keras.legacy:
                layer._set_dtype_policy("float32")
            else:
                layer.dtype_policy = "float32"
    if model.variables and not model.built:
        # The model's own train_step built its parts and never called the model.
        model.built = True
    for traced in ("train_function", "test_function", "predict_function"):
        setattr(model, traced, None)
    return policy_of(model, keras)


def _own_objects(model: Any, keras: Keras) -> dict[str, Callable[..., Any]]:
    """Return the script's own classes and functions in the model's layers, by name.

    Keras looks them up in the module that defined them, which was the script's `__main__` and no longer exists.
    """
    found: dict[str, Callable[..., Any]] = {}
    for layer in keras.layers(model):
        for value in (type(layer), *vars(layer).values()):
            if isinstance(value, type | FunctionType) and not _is_keras(value):
                found[value.__name__] = value
    return found


def _is_keras(value: type | FunctionType) -> bool:
    return value.__module__.split(".", 1)[0] in ("keras", "tf_keras")

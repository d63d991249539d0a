"""Optimizers, losses and metrics from Keras' own serialization, as the job writes it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Literal

from mptraining_api.problems import InvalidSpec, nearest
from mptraining_api.spec_training import KerasObject
from mptraining_trainer.keras_backend import Keras

Kind = Literal["optimizers", "losses", "metrics"]
_ONE: dict[Kind, str] = {"optimizers": "optimizer", "losses": "loss", "metrics": "metric"}


def keras_object(keras: Keras, kind: Kind, wanted: KerasObject, where: str) -> Any:
    """The optimizer, loss or metric that Keras' serialization names, of this generation of Keras.

    Nested objects such as learning rate schedules may say `class_name` or `className`; a function's name
    (`sparse_categorical_crossentropy`) stands for its class. Raises InvalidSpec naming `where`.
    """
    known = classes(keras, kind)
    cls = known.get(wanted.class_name) or keras.module.saving.get_registered_object(wanted.class_name)
    if cls is None:
        by_function = {plain(name): known[name] for name in known}
        cls = by_function.get(plain(wanted.class_name)) if wanted.class_name.islower() else None
    if cls is None:
        hint = nearest(wanted.class_name, known) or f"Known: {', '.join(sorted(known))}."
        raise InvalidSpec(where, f"there is no {_ONE[kind]} {wanted.class_name!r} in {keras.version}", next_step=hint)
    return _construct(cls, _nested(keras, wanted.config or {}, where), where)


def classes(keras: Keras, kind: Kind) -> dict[str, Any]:
    """The classes of that kind that this generation of Keras has, by name."""
    base = {"optimizers": "Optimizer", "losses": "Loss", "metrics": "Metric"}[kind]
    module = getattr(keras.module, kind)
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and issubclass(value, getattr(module, base))
        and name not in (base, "LossScaleOptimizer")
    }


def plain(name: str) -> str:
    """One spelling of a class and of its function: `MeanSquaredError`, `mean_squared_error`."""
    return name.replace("_", "").lower()


def _nested(keras: Keras, value: Any, where: str) -> Any:
    if isinstance(value, (list, tuple)):
        return [_nested(keras, one, where) for one in value]
    if not isinstance(value, Mapping):
        return value
    name = value.get("class_name", value.get("className"))
    if name is None or not set(value) <= {"class_name", "className", "config", "module", "registered_name"}:
        return {key: _nested(keras, one, where) for key, one in value.items()}
    schedules = keras.module.optimizers.schedules
    known = {key: cls for key, cls in vars(schedules).items() if inspect.isclass(cls)}
    for kind in ("losses", "metrics", "optimizers"):
        known |= {key: cls for key, cls in classes(keras, kind).items() if key not in known}
    cls = known.get(name) or keras.module.saving.get_registered_object(name)
    if cls is None:
        raise InvalidSpec(where, f"there is no {name!r} in {keras.version}", next_step=nearest(str(name), known))
    return _construct(cls, _nested(keras, value.get("config") or {}, where), f"{where} ({name})")


def _construct(cls: Any, config: Mapping[str, Any], where: str) -> Any:
    try:
        return cls(**config)
    except (TypeError, ValueError, AttributeError) as error:
        signature = ", ".join(name for name in inspect.signature(cls).parameters if name not in ("args", "kwargs"))
        raise InvalidSpec(
            f"{where}.config", f"{cls.__name__}: {error}", expected=f"arguments of {cls.__name__}({signature})"
        ) from None

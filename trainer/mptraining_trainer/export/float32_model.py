"""Float32 form of a trained model for the export.

The live model is saved as a .keras archive, which has all state that its layers save: weights, vocabularies, moments,
assets, and what `save_own_variables` writes. The float32 form is the same archive with float32 in place of every mixed
policy, since a mixed policy keeps variables in float32 and affects only the compute dtype.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from mptraining_trainer.keras_backend import Keras

_CONFIG, _WEIGHTS = "config.json", "model.weights.h5"


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


@contextmanager
def global_policy(keras: Any, policy: str) -> Iterator[None]:
    """Set the global policy in the block."""
    before = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy(policy)
    try:
        yield
    finally:
        keras.mixed_precision.set_global_policy(before)


def under_float32(keras: Any) -> contextlib.AbstractContextManager[None]:
    """Set the global policy to float32 in the block."""
    return global_policy(keras, "float32")


def save_archive(model: Any, keras: Keras, path: Path) -> None:
    """Save the live model as a .keras archive without optimizer and arguments of `compile`.

    Reading variables may be a collective operation, so every worker calls this function. Raise Keras' own error.
    """
    with quiet(), _without_compile(model, keras):
        keras.module.models.save_model(model, str(path))
    _convert_bfloat16(path)


def save_weights(model: Any, keras: Keras, path: Path) -> None:
    """Save the live model's weights in Keras' format, without the optimizer. Raise Keras' own error."""
    with quiet(), _without_compile(model, keras):
        model.save_weights(str(path))


def load_archive(path: Path, keras: Keras, policy: str, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """Return the model of a .keras archive of this run, uncompiled, under the global policy. Raise Keras' own error."""
    objects = keras.module.utils.custom_object_scope(dict(custom_objects or {}))
    with quiet(), objects, global_policy(keras.module, policy):
        # The archive is this run's own, and Lambda layers are code of its program.
        return keras.module.models.load_model(path, compile=False, safe_mode=False)


def write_float32_archive(source: Path, target: Path) -> bool:
    """Write the archive with float32 in place of every mixed policy; return whether it differs from `source`."""
    with zipfile.ZipFile(source) as archive:
        config = json.loads(archive.read(_CONFIG))
        replaced = replace_mixed_policies(config)
        _rewrite(archive, target, {_CONFIG: json.dumps(replaced).encode()})
    return bool(replaced != config)


def _rewrite(archive: zipfile.ZipFile, target: Path, changed: Mapping[str, bytes | Path]) -> None:
    with zipfile.ZipFile(target, "w") as new:
        for entry in archive.infolist():
            content = changed.get(entry.filename)
            with new.open(entry.filename, "w", force_zip64=True) as written:
                if isinstance(content, bytes):
                    written.write(content)
                    continue
                with content.open("rb") if content is not None else archive.open(entry) as kept:
                    shutil.copyfileobj(kept, written, 1 << 20)


def _convert_bfloat16(path: Path) -> None:
    """Convert the archive's bfloat16 weights without a recorded dtype to float32.

    tf_keras keeps the moments of a Normalization in the compute dtype, and cannot load the bytes that h5py makes of it.
    """
    with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory(prefix="mptraining-") as scratch:
        weights = Path(archive.extract(_WEIGHTS, scratch))
        names: list[str] = []
        with h5py.File(weights, "r+") as file:

            def collect(name: str, item: Any) -> None:
                if isinstance(item, h5py.Dataset) and item.dtype == np.dtype("V2") and "dtype" not in item.attrs:
                    names.append(name)

            file.visititems(collect)
            for name in names:
                values = file[name][()].view(tf.bfloat16.as_numpy_dtype).astype(np.float32)
                del file[name]
                file[name] = values
        if names:
            _rewrite(archive, Path(scratch, path.name), {_WEIGHTS: weights})
            shutil.move(Path(scratch, path.name), path)


@contextmanager
def _without_compile(model: Any, keras: Keras) -> Iterator[None]:
    """Hide the optimizer and the arguments of `compile`, which an export does not have and Keras may fail to save."""
    with contextlib.ExitStack() as shown:
        for part in keras.layers(model):
            if isinstance(part, keras.module.Model):
                if getattr(part, "optimizer", None) is not None:
                    shown.callback(object.__setattr__, part, "optimizer", part.optimizer)
                    object.__setattr__(part, "optimizer", None)
                shown.callback(object.__delattr__, part, "get_compile_config")
                object.__setattr__(part, "get_compile_config", lambda: None)
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress Keras' warnings, and tf_keras' messages on standard output, which is reserved for Events."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def replace_mixed_policies(config: Any) -> Any:
    """Return a Keras configuration with every mixed policy replaced by float32."""
    if isinstance(config, Mapping):
        name = (config.get("config") or {}).get("name") if "class_name" in config else None
        if config.get("class_name") in ("DTypePolicy", "Policy") and str(name).startswith("mixed_"):
            return {**config, "config": {**config["config"], "name": "float32"}}
        return {key: replace_mixed_policies(value) for key, value in config.items()}
    if isinstance(config, (list, tuple)):
        return type(config)(replace_mixed_policies(value) for value in config)
    return "float32" if isinstance(config, str) and config in ("mixed_float16", "mixed_bfloat16") else config


def own_objects(model: Any, keras: Keras) -> dict[str, Callable[..., Any]]:
    """Return the program's own classes and functions in the model's layers, by name.

    Keras looks them up in the module that defined them. That of a script was `__main__` and no longer exists.
    """
    functions: dict[str, Callable[..., Any]] = {}
    for layer in keras.layers(model):
        for value in (type(layer), *vars(layer).values()):
            if isinstance(value, type | FunctionType) and not _is_keras(value):
                functions[value.__name__] = value
    return functions


def _is_keras(value: type | FunctionType) -> bool:
    return value.__module__.split(".", 1)[0] in ("keras", "tf_keras")

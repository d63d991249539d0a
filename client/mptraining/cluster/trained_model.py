"""The trained model in this process: Keras is loaded here, late and by name, and nowhere else in the client.

The same version of Keras opens `model.keras`. Another one, older or newer, builds the model anew from its program and
sets the weights, by the folder's own `rebuild.py`. A script's model has none: there an older Keras opens `model.keras`
without the arguments that it lacks (`older_keras`). Either way the policy is float32, whatever it was trained under.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mptraining.cluster.older_keras import rewritten
from mptraining_api.problems import InvalidData, InvalidProgram


def load(folder: Path) -> Any:
    """The keras.Model that the trainer exported to `folder`.

    Raises InvalidData when there is none, InvalidProgram when this machine's Keras cannot be loaded or cannot make it.
    """
    try:
        about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        legacy = about["keras"]["generation"] == "Legacy"
    except (OSError, ValueError, KeyError, TypeError):
        raise InvalidData(str(folder), "no exported model here", expected="a folder with model.json") from None
    keras = _keras("tf_keras" if legacy else "keras")
    errors = []
    for way in _ways(about, keras.__version__, folder):
        try:
            return _WAYS[way](keras, folder)
        except Exception as error:  # noqa: BLE001 - Keras raises anything; the next way may still work
            errors.append(f"{way}: {type(error).__name__}: {error}")
    raise InvalidProgram(
        str(folder),
        f"Keras {keras.__version__} cannot make this model of Keras {about['keras']['version']}: {'; '.join(errors)}",
        next_step=f"pip install '{keras.__name__.replace('_', '-')}=={about['keras']['version']}'; "
        "the weights alone are in weights.npz",
    )


def _ways(about: Mapping[str, Any], version: str, folder: Path) -> list[str]:
    """How to try, the likelier first. A script says no way to build its model anew."""
    there = [name for name in (_AS_IT_IS, _BY_PROGRAM) if (folder / name).exists()]
    if version == about["keras"]["version"]:
        return there
    return [*there[::-1], *([_IN_PART] if _AS_IT_IS in there else [])]


def _opened(keras: Any, folder: Path) -> Any:
    return _read(keras, folder / "model.keras")


def _opened_in_part(keras: Any, folder: Path) -> Any:
    with tempfile.TemporaryDirectory(prefix="mptraining-") as scratch:
        target = Path(scratch, "model.keras")
        if not rewritten(folder / "model.keras", target):
            raise ValueError("all its arguments are known here")
        return _read(keras, target)


def _read(keras: Any, path: Path) -> Any:
    before = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy("float32")
    try:
        return keras.models.load_model(path, compile=False)
    finally:
        keras.mixed_precision.set_global_policy(before)


def _rebuilt(keras: Any, folder: Path) -> Any:
    """By the folder's own program, which is the user's: it runs here as it ran in the job."""
    del keras
    spec = importlib.util.spec_from_file_location(f"mptraining_rebuild_{abs(hash(str(folder)))}", folder / "rebuild.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load_model(folder)


_AS_IT_IS, _BY_PROGRAM, _IN_PART = "model.keras", "rebuild.py", "model.keras without unused arguments"
_WAYS = {_AS_IT_IS: _opened, _BY_PROGRAM: _rebuilt, _IN_PART: _opened_in_part}


def _keras(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = "tf-keras" if name == "tf_keras" else "keras tensorflow-cpu"
        raise InvalidProgram("", f"{name} cannot be loaded here: {error}", next_step=f"pip install {package}") from None

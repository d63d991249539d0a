"""The trained model in this process: Keras is loaded here, late and by name, and nowhere else in the client.

The same version of Keras opens `model.keras`. Another one, older or newer, builds the model anew from its program and
sets the weights, by the folder's own `rebuild.py`. Either way the policy is float32, whatever it was trained under.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
            return _opened(keras, folder) if way == "model.keras" else _rebuilt(folder)
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
    there = [name for name in ("model.keras", "rebuild.py") if (folder / name).exists()]
    same = version == about["keras"]["version"]
    return there if same else there[::-1]


def _opened(keras: Any, folder: Path) -> Any:
    before = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy("float32")
    try:
        return keras.models.load_model(folder / "model.keras", compile=False)
    finally:
        keras.mixed_precision.set_global_policy(before)


def _rebuilt(folder: Path) -> Any:
    """By the folder's own program, which is the user's: it runs here as it ran in the job."""
    spec = importlib.util.spec_from_file_location(f"mptraining_rebuild_{abs(hash(str(folder)))}", folder / "rebuild.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load_model(folder)


def _keras(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = "tf-keras" if name == "tf_keras" else "keras tensorflow-cpu"
        raise InvalidProgram("", f"{name} cannot be loaded here: {error}", next_step=f"pip install {package}") from None

"""Loading of the trained model into Keras, which is imported here, late and by name, and nowhere else in the client.

The same version of Keras opens `model.keras`. Another version, older or newer, rebuilds the model from its program and
sets the weights, by the folder's own `rebuild.py`. A script's model has no such file: an older Keras then opens
`model.keras` without the arguments that it does not know and whose value is None. The policy is always float32. This
module imports neither pydantic nor the cluster's client, so that it works in an environment with an older Keras alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mptraining_api.problems import InvalidData, InvalidProgram

_CONFIG = "config.json"

# Returns the constructor arguments of the class (module, name); None if they are unknown.
ConstructorArguments = Callable[[str, str], frozenset[str] | None]


def copy_without_unknown(source: Path, target: Path) -> tuple[str, ...]:
    """Copy the .keras archive `source` to `target` without arguments unknown to the local Keras; return their names.

    Names have the form `Dense.quantization_config`. Raises OSError, BadZipFile, KeyError or ValueError if `source` is
    no .keras archive.
    """
    removed: dict[str, None] = {}
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        config = without_unknown(json.loads(old.read(_CONFIG)), constructor_arguments, removed)
        for entry in old.infolist():
            new.writestr(entry, json.dumps(config) if entry.filename == _CONFIG else old.read(entry))
    return tuple(removed)


def without_unknown(config: Any, accepted: ConstructorArguments, removed: dict[str, None]) -> Any:
    """Return Keras' serialized `config` without arguments that are None and not accepted; add them to `removed`."""
    if isinstance(config, list):
        return [without_unknown(element, accepted, removed) for element in config]
    if not isinstance(config, dict):
        return config
    inner = {key: without_unknown(value, accepted, removed) for key, value in config.items()}
    arguments = inner.get("config")
    if not isinstance(arguments, dict) or not isinstance(inner.get("class_name"), str):
        return inner
    known = accepted(str(inner.get("module")), inner["class_name"])
    if known is None:
        return inner
    unused = [key for key, value in arguments.items() if value is None and key not in known]
    removed.update(dict.fromkeys(f"{inner['class_name']}.{key}" for key in unused))
    return {**inner, "config": {key: value for key, value in arguments.items() if key not in unused}}


def constructor_arguments(module: str, name: str) -> frozenset[str] | None:
    """Return the constructor arguments of a Keras class and its bases; None for all other classes."""
    if module.split(".", maxsplit=1)[0] != "keras":
        return None
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return None
    if not inspect.isclass(kind):
        return None
    bases = [base for base in inspect.getmro(kind) if "__init__" in vars(base) and base is not object]
    return frozenset(name for base in bases for name in inspect.signature(vars(base)["__init__"]).parameters)


def load_model(folder: Path) -> Any:
    """Load the keras.Model that the trainer exported to `folder`.

    Raises InvalidData if there is none, InvalidProgram if the local Keras is missing or cannot load the model.
    """
    try:
        about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        legacy = about["keras"]["generation"] == "Legacy"
    except (OSError, ValueError, KeyError, TypeError):
        raise InvalidData(str(folder), "no exported model here", expected="a folder with model.json") from None
    with without_greeting():
        return _load(folder, about, legacy=legacy)


def _load(folder: Path, about: Mapping[str, Any], *, legacy: bool) -> Any:
    keras = _keras("tf_keras" if legacy else "keras")
    errors: list[str] = []
    loaders = _loaders(keras, folder, about)
    if not loaders:
        raise InvalidProgram(
            str(folder),
            f"no form that Keras opens; it has {', '.join(about.get('formats', ())) or 'the weights alone'}",
            next_step="Build the model by its program, and load weights.npz or model.weights.h5.",
        )
    for name, load in loaders.items():
        try:
            return load()
        except Exception as error:  # noqa: BLE001 - Keras raises anything; the next loader may succeed
            errors.append(f"{name}: {type(error).__name__}: {error}")
    raise InvalidProgram(
        str(folder),
        f"Keras {keras.__version__} cannot load this model of Keras {about['keras']['version']}: {'; '.join(errors)}",
        next_step=f"pip install '{keras.__name__.replace('_', '-')}=={about['keras']['version']}'; "
        "the weights alone are in weights.npz",
    )


def _loaders(keras: Any, folder: Path, about: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """Return the loaders of the forms that model.json names, the most likely first; files of no form may be older."""
    file = folder / "model.keras"
    every: dict[str, Callable[[], Any]] = {
        "model.keras": lambda: _read(keras, file),
        "rebuild.py": lambda: _rebuild(folder),
    }
    named = {name: load for name, load in every.items() if name in about.get("formats", ())}
    if keras.__version__ == about["keras"]["version"]:
        return named
    reduced = {"model.keras without unused arguments": lambda: _read_reduced(keras, file)}
    return {name: named[name] for name in reversed(named)} | (reduced if "model.keras" in named else {})


def _read(keras: Any, path: Path) -> Any:
    before = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy("float32")
    try:
        return keras.models.load_model(path, compile=False)
    finally:
        keras.mixed_precision.set_global_policy(before)


def _read_reduced(keras: Any, path: Path) -> Any:
    with tempfile.TemporaryDirectory(prefix="mptraining-") as scratch:
        if not copy_without_unknown(path, target := Path(scratch, "model.keras")):
            raise ValueError("all its arguments are known here")
        return _read(keras, target)


def _rebuild(folder: Path) -> Any:
    """Build the model by `rebuild.py`, which executes the user's program in this process."""
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


# Lines of the log of TensorFlow's C++ runtime: `I0000 00:00:17 file.cc:1] …`, `2026-01-01 …: I tensorflow/…`, and the
# line that precedes them. Information and warnings, and those errors that it prints where there is no GPU.
_GREETING = re.compile(
    r"WARNING: All log messages before absl::InitializeLog"
    r"|(\d{4}-\d\d-\d\d [\d:.]+: )?([IW]\d{4} |[IW] \S+\.cc:\d+)"
    r"|.*(Unable to register cu|failed call to cuInit|CUDA_ERROR_NO_DEVICE|could not find cuda drivers)"
    r"|To enable the following instructions: "
)


@contextmanager
def without_greeting() -> Iterator[None]:
    """Hide the lines that TensorFlow's C++ runtime logs to standard error, on the level of the file descriptor.

    All other lines appear when the block ends. No setting of TensorFlow hides all of them.
    """
    try:
        stderr = os.dup(2)
    except OSError:
        # There is no standard error to hide anything on.
        yield
        return
    with tempfile.TemporaryFile() as kept:
        sys.stderr.flush()
        os.dup2(kept.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            kept.seek(0)
            for line in kept.read().decode("utf-8", errors="replace").splitlines():
                if not _GREETING.match(line):
                    print(line, file=sys.stderr)

"""A `model.keras` for a Keras that is older than the one that wrote it.

A newer Keras writes arguments that an older one does not know, and which it refuses, though most models do not use
them: their value is None. Those are left out; an argument with any other value stays, and is refused as before.
"""

from __future__ import annotations

import importlib
import inspect
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CONFIG = "config.json"

# The arguments that a class takes, by its module and name; None where they cannot be known.
Accepted = Callable[[str, str], frozenset[str] | None]


def rewritten(source: Path, target: Path) -> tuple[str, ...]:
    """Writes the archive `source` to `target` without the arguments that Keras here lacks; returns those.

    They are named as `Dense.quantization_config`. Raises OSError, BadZipFile, KeyError or ValueError for another file.
    """
    left_out: dict[str, None] = {}
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        config = without_unknown(json.loads(old.read(_CONFIG)), accepted, left_out)
        for each in old.infolist():
            new.writestr(each, json.dumps(config) if each.filename == _CONFIG else old.read(each))
    return tuple(left_out)


def without_unknown(config: Any, accepted: Accepted, left_out: dict[str, None]) -> Any:
    """Keras' serialized `config` without the unused arguments that `accepted` lacks; notes them in `left_out`."""
    if isinstance(config, list):
        return [without_unknown(each, accepted, left_out) for each in config]
    if not isinstance(config, dict):
        return config
    inner = {key: without_unknown(value, accepted, left_out) for key, value in config.items()}
    arguments = inner.get("config")
    if not isinstance(arguments, dict) or not isinstance(inner.get("class_name"), str):
        return inner
    known = accepted(str(inner.get("module")), inner["class_name"])
    if known is None:
        return inner
    unused = [key for key, value in arguments.items() if value is None and key not in known]
    left_out.update(dict.fromkeys(f"{inner['class_name']}.{key}" for key in unused))
    return {**inner, "config": {key: value for key, value in arguments.items() if key not in unused}}


def accepted(module: str, name: str) -> frozenset[str] | None:
    """What one of Keras' own classes takes, with its bases; None for all others, which are left alone."""
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

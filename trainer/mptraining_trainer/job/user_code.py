"""Import of the user's functions by `module:name`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mptraining_api.problems import InvalidProgram, nearest
from mptraining_api.tensorflow_cloud import inside_job
from mptraining_trainer.report.error_text import describe_error


def import_entry_point(entry_point: str, where: str) -> Callable[..., Any]:
    """Return the function `module:name`; the source folder must be the first entry of sys.path.

    Raises InvalidProgram naming `where`, the missing module or attribute, and the most similar existing name.
    """
    name, _, attribute = entry_point.partition(":")
    # The module may import tensorflow_cloud to submit itself when the user runs it.
    sys.modules.setdefault("tensorflow_cloud", inside_job)
    try:
        module = importlib.import_module(name)
    except Exception as error:
        missing = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
        if missing and (name == missing or name.startswith(f"{missing}.")):
            raise _module_not_found(where, name, missing) from None
        step = f"Add {missing!r} to source.requirements or to the image." if missing else ""
        raise InvalidProgram(where, describe_error(f"importing {name}", error), next_step=step) from error
    try:
        function = getattr(module, attribute)
    except AttributeError:
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        hint = nearest(attribute, known) or f"It has {', '.join(sorted(known)) or 'no functions'}."
        raise InvalidProgram(where, f"module {name!r} has no {attribute!r}", next_step=hint) from None
    if not callable(function):
        raise InvalidProgram(where, f"{entry_point} is {type(function).__name__}", expected="a function")
    return function  # type: ignore[no-any-return]


def _module_not_found(where: str, name: str, missing: str) -> InvalidProgram:
    parent, _, last = missing.rpartition(".")
    # A top-level module is searched for in the source folder only; the other folders of sys.path hold no user code.
    folders = list(getattr(sys.modules.get(parent), "__path__", [])) if parent else [sys.path[0] or "."]
    modules = {
        path.stem for folder in folders for path in Path(folder).glob("*") if path.suffix == ".py" or path.is_dir()
    }
    near = nearest(last, sorted(word for word in modules if word.isidentifier()))
    whose = "" if name == missing else f"for {name!r}; "
    step = near or "Put the code there, or into an installed package."
    return InvalidProgram(where, f"no module {missing!r} ({whose}searched {', '.join(folders)})", next_step=step)

"""Value or exception of a submitted function, which `result` of its job returns or raises.

The trainer pickles it into the run folder (`mptraining_trainer.job.function_call`).
"""

from __future__ import annotations

import base64
import io
import pickle
from typing import Any

from mptraining.packaging.program import NOTEBOOK_MODULE
from mptraining_api import run_folder
from mptraining_api.run_folder import FunctionResult
from mptraining_storage import storage


class FunctionFailed(Exception):
    """A submitted function raised an exception, or returned a value, that cannot be unpickled here."""


def read(folder: str) -> FunctionResult | None:
    """Return what a function returned or raised, from the folder FUNCTION of its run; None if there is nothing."""
    file = storage.join(folder, run_folder.FUNCTION_RESULT)
    return FunctionResult.read(storage.read(file)) if storage.exists(file) else None


def value_of(result: FunctionResult) -> Any:
    """Return the value that the function returned, or raise its exception, with the job's traceback as a note."""
    value: Any = None
    try:
        value = None if result.pickle is None else _Unpickler(io.BytesIO(base64.b64decode(result.pickle))).load()
    except Exception as error:
        if not result.raised:
            raise FunctionFailed(f"the value, of type {result.type}, cannot be unpickled here: {error}") from error
    if not result.raised:
        return value
    raised = value if isinstance(value, Exception) else FunctionFailed(f"{result.type}: {result.message}")
    raised.add_note(f"Raised in the job:\n{result.traceback.rstrip()}")
    raise raised


class _Unpickler(pickle.Unpickler):
    """Unpickler for which the classes of the shipped notebook or script are those of `__main__`."""

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class("__main__" if module == NOTEBOOK_MODULE else module, name)

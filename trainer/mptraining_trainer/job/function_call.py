"""The call of a submitted function, and what it returned or raised, for `result` of the client's jobs.

The script that the client generates calls the function in `returning`; the chief publishes the outcome in the run
folder when training has ended.
"""

from __future__ import annotations

import base64
import os
import pickle
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mptraining_api import run_folder
from mptraining_api.launch import SOURCE_FOLDER
from mptraining_api.problems import InvalidProgram
from mptraining_api.run_folder import FunctionResult
from mptraining_storage import storage

# Of a pickled value: it is read at once, by a notebook.
MOST_BYTES = 32 << 20
# Of an outcome in one line of a log, which also bounds the end of a traceback.
_LONGEST_LINE = 32_000
_LONGEST_TRACEBACK = 8_000
_NEXT_STEP = (
    "Return numbers, texts, arrays, lists or mappings of them, such as History.history; the client's job.model() is "
    "the trained model, and other files belong into a bucket or a volume."
)


@dataclass
class Returned:
    """The value that the function returned."""

    value: object = None


# The outcome of this process' function; a list, so that it is changed and not bound again.
_outcomes: list[FunctionResult] = []


@contextmanager
def returning() -> Iterator[Returned]:
    """Record what the block assigns to the value, or the exception that ends it.

    Raises InvalidProgram for a value that cannot be pickled, or is too large.
    """
    returned = Returned()
    _outcomes.clear()
    try:
        yield returned
    except Exception as error:
        _outcomes.append(_raised(error))
        raise
    _outcomes.append(_returned(returned.value))


def _returned(value: object) -> FunctionResult:
    name = _type_name(value)
    try:
        pickled = pickle.dumps(value)
    except Exception as error:
        mistake = f"returned a value of type {name}, which cannot be pickled: {error}"
        raise InvalidProgram("the function", mistake, next_step=_NEXT_STEP) from error
    if len(pickled) > MOST_BYTES:
        mistake = f"returned a value of type {name} of {len(pickled):,} bytes"
        raise InvalidProgram("the function", mistake, expected=f"at most {MOST_BYTES:,}", next_step=_NEXT_STEP)
    return FunctionResult(raised=False, type=name, pickle=base64.b64encode(pickled).decode())


def _raised(error: Exception) -> FunctionResult:
    # The first frame is that of `returning`.
    frames = error.__traceback__.tb_next if error.__traceback__ is not None else None
    folder = Path(os.environ.get(SOURCE_FOLDER, ".")).resolve()
    # The user knows the files, and not where they are unpacked.
    text = "".join(traceback.format_exception(type(error), error, frames)).replace(f"{folder}{os.sep}", "")[
        -_LONGEST_TRACEBACK:
    ]
    try:
        pickled = pickle.dumps(error)
        # An exception with a constructor of its own may be pickled, but not read again.
        pickle.loads(pickled)  # noqa: S301 - what was pickled in the line above
        encoded = base64.b64encode(pickled).decode() if len(pickled) <= MOST_BYTES else None
    except Exception:  # noqa: BLE001 - the exception may hold anything
        encoded = None
    return FunctionResult(raised=True, type=_type_name(error), message=str(error), traceback=text, pickle=encoded)


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def outcome(attempt: int, redact: Callable[[str], str]) -> FunctionResult | None:
    """Return the outcome of this process' function, once, without the values of Secrets in its texts."""
    if not _outcomes:
        return None
    result = _outcomes.pop()
    texts = {"message": redact(result.message), "traceback": redact(result.traceback)}
    return result.model_copy(update={"attempt": attempt, **texts})


def publish(result: FunctionResult, folder: str) -> None:
    """Write the outcome into the run folder. Raises StorageUnavailable."""
    file = storage.join(folder, run_folder.FUNCTION, run_folder.FUNCTION_RESULT)
    storage.write(file, result.to_json().encode())


def as_line(result: FunctionResult) -> str:
    """Return the outcome for a line of the log: without its pickle if that is long."""
    text = result.to_json()
    return text if len(text) <= _LONGEST_LINE else result.model_copy(update={"pickle": None}).to_json()

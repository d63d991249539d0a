"""The value of a function, or its exception, from the job to the notebook."""

from __future__ import annotations

import base64
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from mptraining.packaging import function_result
from mptraining.packaging.function_result import FunctionFailed, value_of
from mptraining_api import run_folder
from mptraining_api.problems import InvalidProgram
from mptraining_api.run_folder import FunctionResult
from mptraining_trainer.job import function_call


class TooCold(Exception):
    """An exception whose constructor takes two arguments, so that it can be pickled and not read."""

    def __init__(self, degrees: int, place: str) -> None:
        super().__init__(f"{degrees} degrees in {place}")


def outcome(value: object, attempt: int = 1) -> FunctionResult:
    """Return what the trainer keeps of a function that returns `value`, or raises it."""
    if isinstance(value, Exception):
        with pytest.raises(type(value)), function_call.returning():
            raise value
    else:
        with function_call.returning() as returned:
            returned.value = value
    found = function_call.outcome(attempt, lambda text: text.replace("secret", "***"))
    assert found is not None
    assert function_call.outcome(attempt, str) is None, "it is kept once"
    return found


@pytest.mark.parametrize("value", [None, 3, {"loss": [0.5, np.float32(0.25)]}, (1, "a"), np.arange(3)])
def test_a_value_arrives_through_the_run_folder(value: object, tmp_path: Path) -> None:
    function_call.publish(outcome(value, attempt=2), str(tmp_path))
    found = function_result.read(str(tmp_path / run_folder.FUNCTION))
    assert found is not None
    assert (found.attempt, found.raised) == (2, False)
    np.testing.assert_equal(value_of(found), value)
    assert function_result.read(str(tmp_path)) is None


def test_the_function_s_own_exception_is_raised_with_its_traceback() -> None:
    found = outcome(ValueError("the rate is secret"))
    assert (found.type, found.message) == ("ValueError", "the rate is ***")
    with pytest.raises(ValueError, match="the rate is secret") as raised:
        value_of(found)
    (note,) = raised.value.__notes__
    assert note.startswith("Raised in the job:\nTraceback (most recent call last):")
    assert "in returning" not in note
    assert note.endswith("ValueError: the rate is ***")


def test_classes_of_the_notebook_are_those_of_main_here(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped, main = ModuleType("notebook_program"), sys.modules["__main__"]
    for module in (shipped, main):
        kind = type("Diverged", (Exception,), {"__module__": "notebook_program"})
        monkeypatch.setattr(module, "Diverged", kind, raising=False)
    monkeypatch.setitem(sys.modules, "notebook_program", shipped)
    found = outcome(shipped.Diverged("at step 3"))
    monkeypatch.delitem(sys.modules, "notebook_program")
    with pytest.raises(main.Diverged, match="at step 3"):  # type: ignore[attr-defined]
        value_of(found)
    # In a restarted kernel, before the cell of the class.
    monkeypatch.delattr(main, "Diverged")
    with pytest.raises(FunctionFailed, match=r"notebook_program\.Diverged: at step 3"):
        value_of(found)


@pytest.mark.parametrize("error", [TooCold(-3, "Bonn"), ValueError(lambda: None)])
def test_an_exception_that_cannot_be_pickled_keeps_its_text(error: Exception) -> None:
    found = outcome(error)
    assert found.pickle is None
    with pytest.raises(FunctionFailed) as raised:
        value_of(found)
    assert str(error) in str(raised.value)
    assert type(error).__name__ in raised.value.__notes__[0]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (lambda: None, r"returned a value of type function, which cannot be pickled: .*History\.history"),
        (b"x" * 65, r"returned a value of type bytes of 8\d bytes; expected at most 64"),
    ],
)
def test_a_value_that_cannot_be_kept_is_refused(value: Any, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_call, "MOST_BYTES", 64)
    with pytest.raises(InvalidProgram, match=found):
        outcome(value)


def test_a_value_of_a_class_that_is_not_here_names_it() -> None:
    gone = base64.b64encode(pickle.dumps(np.arange(2)).replace(b"numpy", b"nunpy")).decode()
    with pytest.raises(
        FunctionFailed, match=r"of type numpy\.ndarray, cannot be unpickled here: No module named 'nunpy"
    ):
        value_of(FunctionResult(raised=False, type="numpy.ndarray", pickle=gone))


def test_a_line_of_the_log_has_no_long_pickle() -> None:
    short, long = outcome(ValueError("a")), outcome(ValueError("a", b"x" * 40_000))
    assert FunctionResult.read(function_call.as_line(short)) == short
    assert FunctionResult.read(function_call.as_line(long)).pickle is None

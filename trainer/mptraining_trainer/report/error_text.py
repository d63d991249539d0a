"""Text and place of an error, as the user's code raised it, in one line."""

from __future__ import annotations

import importlib
import inspect
import re
import traceback
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from mptraining_api.problems import Problem

# The folders of the standard library and of TensorFlow, which may be an editable install.
_LIBRARIES = (inspect.__file__, importlib.__file__, tf.__file__)

# The module that runs the user's code.
_ENTRY = str(Path(__file__).parents[1] / "run.py")

# Beginnings of lines in which a TensorFlow or Keras message repeats its traceback.
_LOCATION = (
    *("File ", "in user code:", "Traceback (most recent", "Graph execution error", "Detected at node", "[["),
    *("Stack trace", "<stack traces", "^", "~"),
)
# Decoration by TensorFlow and Keras: colours, nodes, operations and the steps of a dataset.
_DECORATION = re.compile(
    r"\x1b\[[0-9;]*m|\{\{function_node [^}]*\}\}\s*|\s*\[Op:\w+\]( name:)?"
    r"|Error in user-defined function passed to \S+ transformation with iterator: \S+: "
    r"|\d+ root error\(s\) found\.|\(0\) [A-Z_a-z]+: +|\d+ (successful operations|derived errors ignored)\."
)
# The beginning of the second of the errors of several replicas.
_SECOND = re.compile(r"^\s*\(1\) [A-Z_a-z]+: ", re.MULTILINE)
_PYTHON_ERROR = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Warning|Interrupt|Iteration): ")
# The message of a lookup with a number that has no row.
INDEX = re.compile(r"indices\[[\d,]*\] = (-?\d+) is not in \[0, (\d+)\)")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def describe_error(what: str, error: BaseException, *, most: int | None = None) -> str:
    """Return an error of the user's code and its place: `importing flowers raised NameError: ... (at flowers.py:3)`.

    Without `what`, return only the error and its place. `most` is the largest number of characters of the error's text.
    """
    frame = user_frame(error)
    return (f"{what} raised " if what else "") + error_text(error)[:most] + (f" (at {frame})" if frame else "")


def error_text(error: BaseException) -> str:
    """Return `ValueError: cannot rotate`: class and text as raised, without what TensorFlow and Keras add around it.

    TensorFlow keeps the text of an error that Python raised in a graph, and raises an error of its own.
    """
    message = error.message if isinstance(error, tf.errors.OpError) else str(error)
    lines: list[str] = []
    frame = False
    for line in _DECORATION.sub("", _SECOND.split(message)[0]).splitlines():
        text = line.strip()
        # The line after a frame's file is its source code, or empty.
        if not frame and text and not text.startswith(_LOCATION) and text not in lines:
            lines.append(text)
        frame = text.startswith("File ")
    joined = " ".join(lines) or str(error)
    return joined if _PYTHON_ERROR.match(joined) else f"{type(error).__name__}: {joined}".rstrip(": ")


def user_frame(error: BaseException) -> str:
    """Return `file:line` of the innermost frame in the user's own code, or an empty string.

    The frames in the message of a traced function name the user's file; those of the traceback name AutoGraph's copy.
    """
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    raised = [(frame.filename, str(frame.lineno)) for frame in traceback.extract_tb(error.__traceback__)]
    return _innermost(_FRAME.findall(str(error))) or _innermost(raised)


def _innermost(frames: Sequence[tuple[str, str]]) -> str:
    ours = str(Path(__file__).parents[1])
    libraries = ("<", ours, *sorted({str(Path(module).parent) for module in _LIBRARIES}))
    for path, line in reversed(frames):
        if not path.startswith(libraries) and "site-packages" not in path and "__autograph_generated" not in path:
            return f"{path}:{line}"
        if path == _ENTRY:
            # The frames before it are those of the process that runs the trainer.
            return ""
    return ""


def problem_in(error: BaseException) -> Problem | None:
    """Return the Problem in the error's causes and contexts.

    AutoGraph raises its own error in place of one whose class it cannot construct.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, Problem):
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


def next_step_of(error: BaseException) -> str:
    """Return the next step for values of the records that the model's operations do not take; empty for others."""
    text = str(error)
    if INDEX.search(text):
        return "Give the layer (an Embedding's input_dim) a row for each number, or correct the numbers in the records."
    if "Cast string to" in text:
        return "A feature or the label is text: map it to numbers in data.preprocess or by a StringLookup layer."
    return ""

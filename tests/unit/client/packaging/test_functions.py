"""A function cut out of a program: all that it needs, nothing that it does not, on its original lines."""

from __future__ import annotations

import functools

import pytest

from mptraining.packaging.functions import check_function_name, extract_function
from mptraining_api.problems import InvalidProgram

PROGRAM = """\
from __future__ import annotations
import os, json
from math import *
import numpy as np
SIZE = 3
if SIZE > 2:
    DEPTH = 4
else:
    DEPTH = 5
model = launch_the_rockets()
def scale(value): return value * SIZE
@functools.cache
def helper():
    model = scale(DEPTH)
    return json.dumps(model)
class Unused: x = os.getcwd()
history = model.fit()
def build(size=SIZE) -> np.ndarray:
    return helper() + str(floor(1.5))
"""


def test_what_is_needed_is_kept_on_its_line_and_runs() -> None:
    lines = extract_function(PROGRAM, "build", "p.py").split("\n")
    kept = {number for number, line in enumerate(lines, start=1) if line}
    # Neither the model, which is a variable of helper's own, nor the code that creates it.
    assert kept == {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 18, 19}
    assert len(lines) == len(PROGRAM.split("\n"))
    space: dict[str, object] = {}
    exec(extract_function(PROGRAM.replace("@functools.cache\n", "\n"), "build", "p.py"), space)
    assert space["build"]() == "121"  # type: ignore[operator]
    assert "Unused" not in space


def test_names_inside_lambdas_classes_and_comprehensions_count() -> None:
    body = "    class K:\n        x = A\n    return [B for _ in K.x] + (lambda: C)()\n"
    text = f"A = 1\nB = 2\nC = 3\nD = 4\ndef f():\n{body}"
    assert extract_function(text, "f", "p.py") == text.replace("D = 4", "")
    recursive = "def even(n): return n == 0 or odd(n - 1)\ndef odd(n): return n > 0 and even(n - 1)\nx = 1"
    assert extract_function(recursive, "even", "p.py") == recursive.removesuffix("x = 1")


def test_a_function_that_is_not_there() -> None:
    with pytest.raises(InvalidProgram, match=r"p.py does not define 'bild'. Did you mean 'build'\?"):
        extract_function(PROGRAM, "bild", "p.py")
    with pytest.raises(InvalidProgram, match=r"^p.py, line 1: "):
        extract_function("def", "f", "p.py")


def inner() -> object:
    def local() -> None: ...

    return local


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda: 1, "is a lambda"),
        (inner(), "is defined inside a function"),
        (functools.partial(inner), "is no function"),
        (len, "is no function"),
        (dict, "is no function"),
    ],
)
def test_what_has_no_source_is_refused(function: object, what: str) -> None:
    with pytest.raises(InvalidProgram, match=what):
        check_function_name(function)  # type: ignore[arg-type]

"""Extraction of one function and its dependencies from the source of a script or notebook.

The result keeps the top-level statements that bind a name which the function uses, directly or through another kept
statement. All other lines become empty, so that line numbers match the user's file.
"""

from __future__ import annotations

import ast
import dis
import warnings
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from mptraining_api.problems import InvalidProgram, nearest

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def check_function_name(function: Callable[..., Any]) -> None:
    """Raise InvalidProgram for a lambda, a nested function, or a callable without source text."""
    name = getattr(function, "__qualname__", "")
    if not name or "<" in name or not hasattr(function, "__code__"):
        what = (
            "a lambda" if name.endswith("<lambda>") else "defined inside a function" if "<" in name else "no function"
        )
        raise InvalidProgram(
            "entry_point",
            f"{name or function!r} is {what}",
            expected="a function defined by `def` at the top of a module or a cell",
            next_step="Its source is shipped as text; give it a `def` of its own.",
        )


def extract_function(text: str, name: str, where: str) -> str:
    """Return `text` with only the statements that the function `name` needs.

    Raises InvalidProgram if `text` does not define it, or is not valid Python.
    """
    try:
        statements = ast.parse(text).body
    except SyntaxError as error:
        raise InvalidProgram(f"{where}, line {error.lineno}", error.msg) from error
    binds = [set(_names_bound(statement)) for statement in statements]
    defined = {statement.name for statement in statements if isinstance(statement, _DEFINITIONS)}
    if name not in defined:
        hint = nearest(name, sorted(defined)) or "Define it with `def` at the top of a cell or of the file."
        raise InvalidProgram("entry_point", f"{where} does not define {name!r}", next_step=hint)
    kept: set[int] = set()
    needed, waiting = {name}, [name]
    while waiting:
        needed_name = waiting.pop()
        for index, bound in enumerate(binds):
            if index in kept or not (needed_name in bound or "*" in bound):
                continue
            kept.add(index)
            new = _names_read(statements[index]) - needed
            needed |= new
            waiting += sorted(new)
    return _with_blank_lines(text, [statements[index] for index in sorted(kept)])


def _names_bound(statement: ast.stmt) -> Iterator[str]:
    """Yield the module-level names that a statement binds; `*` if it affects every name."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield statement.name
            return
        case ast.ImportFrom(module="__future__"):
            yield "*"
            return
    # ast.walk also yields the names inside `if` and `try`, and local names of functions there; the latter only keep
    # statements that are not needed.
    for node in ast.walk(statement):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.Import() | ast.ImportFrom():
                for alias in node.names:
                    yield alias.asname or alias.name.partition(".")[0]


def _names_read(statement: ast.stmt) -> set[str]:
    """Return the global names that a statement, or a function in it, reads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        # dont_inherit: the `from __future__ import annotations` of this module must not apply to the user's code.
        code = compile(ast.Module([statement], []), "<shipped>", "exec", dont_inherit=True)
    return set(_names(code))


def _names(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        # Local variables have other instructions: a local `model` does not depend on a global `model`.
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _with_blank_lines(text: str, kept: list[ast.stmt]) -> str:
    lines = text.split("\n")
    numbers: set[int] = set()
    for statement in kept:
        first = statement.lineno
        if isinstance(statement, _DEFINITIONS):
            first = min([first, *(decorator.lineno for decorator in statement.decorator_list)])
        numbers.update(range(first, (statement.end_lineno or statement.lineno) + 1))
    return "\n".join(
        line if number in numbers or line.startswith("# %% ") else "" for number, line in enumerate(lines, start=1)
    )

"""From a notebook's cells to one Python program, which runs where there is no IPython.

IPython's own transformer reads magics and shell commands; what it makes of them calls `get_ipython()`, which the
trainer answers (`mptraining_trainer.notebook_shell`). Each cell begins with a line `# %% NAME, cell N`, by which the
trainer says in which cell an error is.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mptraining.packaging.notebook_cells import Cell, Notebook
from mptraining.packaging.requirements import install_arguments, requirement_lines
from mptraining_api.problems import InvalidProgram

# `%%time` and its like say something about a cell's code, which is run as code then.
TRANSPARENT_CELLS = frozenset({"time", "timeit", "capture", "prun", "memit", "skip"})
# What the trainer's shell does, and what it passes over because it is for the eye.
KNOWN_CELLS = frozenset({"writefile", "bash", "sh", "shell", "script", "file"})
SILENT_CELLS = frozenset({"html", "HTML", "javascript", "js", "markdown", "latex", "svg", "SVG"})
KNOWN_LINES = frozenset(
    {"pip", "cd", "env", "set_env", "time", "timeit", "pwd", "ls", "mkdir", "cat", "cp", "mv", "rm"}
)
SILENT_LINES = frozenset(
    {
        "matplotlib", "load_ext", "reload_ext", "autoreload", "tensorboard", "config", "pinfo", "pinfo2", "who", "whos",
        "history", "tensorflow_version", "reset", "precision", "autosave", "automagic",
    }
)  # fmt: skip
PRELUDE = "from mptraining_trainer.notebook_shell import get_ipython"

_CELL_MAGIC = re.compile(r"%%(\w+)")


@dataclass(frozen=True, slots=True)
class NotebookProgram:
    """The program's text, the lines for a requirements file that its pip commands ask for, and notes for the user."""

    text: str
    requirements: tuple[str, ...]
    notes: tuple[str, ...]


def program(notebook: Notebook) -> NotebookProgram:
    """The notebook as a program. Raises InvalidProgram naming the cell and the line of a mistake."""
    body: list[str] = []
    futures: dict[str, None] = {}
    lines: dict[str, None] = {}
    notes = list(notebook.notes)
    uses_shell = False
    for cell in notebook.cells:
        where = f"{notebook.name}, cell {cell.number}"
        try:
            text = _python(cell, where)
            tree = _parsed(text, where)
        except InvalidProgram as mistake:
            # Who mistyped a cell has typed it again.
            if not notebook.executed:
                raise
            notes.append(f"{mistake.where}: {mistake.found}; the cell is left out")
            continue
        text = _without_futures(text, tree, futures)
        for call in _shell_calls(tree):
            uses_shell = True
            notes += _note(call, where)
            for asked in _pip(call):
                wanted, said = requirement_lines(asked)
                lines.update(dict.fromkeys(wanted))
                notes += [f"{where}: {each}" for each in said]
        body += [f"# %% {where}", text.rstrip("\n"), ""]
    head = [f"from __future__ import {', '.join(futures)}"] if futures else []
    head += [PRELUDE, ""] if uses_shell else []
    return NotebookProgram("\n".join([*head, *body]), tuple(lines), tuple(notes))


def _python(cell: Cell, where: str) -> str:
    """The cell's Python, line for line where that can be."""
    try:
        from IPython.core.inputtransformer2 import TransformerManager
    except ImportError:
        step = "Install it with: pip install 'mptraining[notebook]'"
        raise InvalidProgram(where, "IPython, which reads notebooks, is not installed here", next_step=step) from None

    source = cell.source
    first = source.lstrip()
    magic = _CELL_MAGIC.match(first)
    if magic and magic[1] in TRANSPARENT_CELLS:
        line, _, rest = first.partition("\n")
        source = source[: len(source) - len(first)] + f"# {line}\n{rest}"
    # The transformer drops empty lines at the beginning: a line's number would be another one.
    blank = len(source[: len(source) - len(source.lstrip())].split("\n")) - 1
    try:
        transformer: Any = TransformerManager
        return "\n" * blank + str(transformer().transform_cell(source))
    except SyntaxError as error:
        raise _mistake(error, where) from error


def _parsed(text: str, where: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            # An odd escape in a string is the program's own business.
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            tree = ast.parse(text)
            # What the parser alone lets pass: `return` and `await` outside a function.
            compile(tree, where, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise _mistake(error, where) from error
    return tree


def _mistake(error: SyntaxError | ValueError, where: str) -> InvalidProgram:
    if not isinstance(error, SyntaxError):
        return InvalidProgram(where, str(error))
    line = f", line {error.lineno}" if error.lineno else ""
    quoted = f": {error.text.strip()}" if error.text and error.text.strip() else ""
    step = "Mend the cell; it runs as a Python program, without IPython."
    if "await" in (error.msg or ""):
        step = "A program has no event loop of its own: write asyncio.run(...)."
    return InvalidProgram(f"{where}{line}", f"{error.msg}{quoted}", next_step=step)


def _without_futures(text: str, tree: ast.Module, futures: dict[str, None]) -> str:
    """`from __future__` must stand before all else in a program; its place stays as empty lines."""
    lines = text.split("\n")
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            futures.update(dict.fromkeys(alias.name for alias in node.names))
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of IPython's shell: `system` or `getoutput` with a command, or a magic with its line."""

    method: str
    magic: str
    line: str


def _shell_calls(tree: ast.Module) -> Iterator[_Call]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name) or node.id != "get_ipython":
            continue
        # A program's own use counts too: it needs the name.
        yield _Call("get_ipython", "", "")
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="get_ipython")), attr=method)):
                words = [each.value for each in node.args if isinstance(each, ast.Constant)]
                texts = [word for word in words if isinstance(word, str)]
                if method in ("system", "getoutput") and texts:
                    yield _Call(method, "", texts[0])
                elif method in ("run_line_magic", "run_cell_magic") and len(texts) > 1:
                    yield _Call(method, texts[0], texts[1])


def _pip(call: _Call) -> Iterator[str]:
    """What follows each `pip install` of the call."""
    command = f"pip {call.line}" if call.magic == "pip" else call.line if call.method == "system" else ""
    for part in command.split("&&"):
        asked = install_arguments(part)
        if asked is not None:
            yield asked


def _note(call: _Call, where: str) -> list[str]:
    if call.method == "run_cell_magic" and call.magic not in KNOWN_CELLS | SILENT_CELLS:
        return [f"{where}: %%{call.magic} is not known in the job; the cell is passed over there"]
    if call.method == "run_line_magic" and call.magic not in KNOWN_LINES | SILENT_LINES:
        return [f"{where}: %{call.magic} is not known in the job, and is passed over there"]
    return []

"""From a notebook's cells to one Python program, which runs where there is no IPython.

IPython's own transformer reads magics and shell commands; what it makes of them calls `get_ipython()`, which the
trainer answers (`mptraining_trainer.notebook_shell`). Each cell begins with a line `# %% NAME, cell N`, by which the
trainer says in which cell an error is.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mptraining.packaging.requirements import install_arguments, requirement_lines
from mptraining_api.problems import InvalidProgram

_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Cell:
    """One code cell; `number` counts the notebook's code cells from 1, empty ones too."""

    number: int
    source: str


@dataclass(frozen=True, slots=True)
class Notebook:
    """Its code cells, and how messages call it.

    `executed`: the cells are what was typed so far, mistakes included; their numbers are IPython's.
    """

    name: str
    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()
    executed: bool = False


def read_notebook(file: Path) -> Notebook:
    """The notebook in a file. Raises InvalidProgram for what is no notebook of format 4."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or f"not a notebook: {error}"
        raise InvalidProgram(str(file), why, expected="a notebook in JSON (.ipynb)") from error
    return Notebook(file.name, code_cells(document, file.name))


def code_cells(document: object, name: str) -> tuple[Cell, ...]:
    """The code cells of a notebook's JSON. Raises InvalidProgram naming what is missing."""
    cells = document.get("cells") if isinstance(document, Mapping) else None
    if not isinstance(cells, list):
        step = "Open it in Jupyter and save it, which brings it to format 4."
        raise InvalidProgram(name, "it has no list of cells", expected="a notebook of format 4", next_step=step)
    codes = [cell for cell in cells if isinstance(cell, Mapping) and cell.get("cell_type") == "code"]
    return tuple(Cell(number, _text(cell.get("source"))) for number, cell in enumerate(codes, start=1))


def _text(source: object) -> str:
    """A cell's source is a text or a list of lines; an empty cell may have neither."""
    if isinstance(source, str):
        return source
    return "".join(line for line in source if isinstance(line, str)) if isinstance(source, Sequence) else ""


def shell() -> Any | None:
    """IPython's running shell, None outside of it; IPython is not imported for that."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def running_notebook(environment: Mapping[str, str] = os.environ, *, as_saved: bool = False) -> Notebook:
    """The notebook that this code is called from; `as_saved`: also one whose file lacks the cell that is running.

    Raises InvalidProgram when it cannot be had.
    """
    session = shell()
    if session is None:
        step = "Name a file: entry_point='train.py'."
        raise InvalidProgram("entry_point", "no notebook is running here", next_step=step)
    document = _from_colab() or _from_kaggle(environment)
    if document is not None:
        return Notebook("notebook.ipynb", code_cells(document, "the notebook"))
    typed = session.history_manager.input_hist_raw
    executed = tuple(Cell(number, text) for number, text in enumerate(typed) if text.strip())
    file = _file(session, environment)
    if file is None:
        note = "the cells that were executed so far are shipped, in their order"
        return Notebook("notebook.ipynb", executed, (note,), executed=True)
    notebook = read_notebook(file)
    if (
        not as_saved
        and executed
        and executed[-1].source.strip() not in {cell.source.strip() for cell in notebook.cells}
    ):
        raise InvalidProgram(
            str(file),
            "the file does not hold the cell that is running",
            expected="the notebook as it is shown",
            next_step="Save the notebook, then run the cell again.",
        )
    return notebook


def _file(session: Any, environment: Mapping[str, str]) -> Path | None:
    for name in (session.user_ns.get("__vsc_ipynb_file__"), environment.get("JPY_SESSION_NAME")):
        if name and str(name).endswith(".ipynb") and Path(name).is_file():
            return Path(name)
    return None


def _from_colab() -> object | None:
    if "google.colab" not in sys.modules:
        return None
    from google.colab import _message

    answer = _message.blocking_request("get_ipynb", request="", timeout_sec=_SECONDS)
    if not answer:
        step = "Run the cell again, or save the notebook and name it: entry_point='notebook.ipynb'."
        raise InvalidProgram("the notebook", f"Colab did not hand it out within {_SECONDS} s", next_step=step)
    return answer["ipynb"]  # type: ignore[no-any-return]


def _from_kaggle(environment: Mapping[str, str]) -> object | None:
    if not environment.get("KAGGLE_CONTAINER_NAME"):
        return None
    from kaggle_session import UserSessionClient

    return json.loads(UserSessionClient().get_exportable_ipynb()["source"])  # type: ignore[no-any-return]


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

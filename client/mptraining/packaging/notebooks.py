"""Conversion of a notebook's cells into one Python program that runs without IPython.

The notebook comes from a file, or from the running front end (Colab, Kaggle, Jupyter, VS Code; else the cells executed
so far). IPython's transformer turns magics and shell commands into calls of `get_ipython()`, which
`mptraining_trainer.notebook_shell` implements in the job. Each cell begins with a line `# %% NAME, cell N`, from which
the trainer reports the cell of an error.
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
    """One code cell; `number` counts the notebook's code cells from 1, including empty ones."""

    number: int
    source: str


@dataclass(frozen=True, slots=True)
class Notebook:
    """A notebook's code cells, and its name in messages.

    `executed`: the cells are IPython's input history, including cells that failed, with IPython's numbers.
    """

    name: str
    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()
    executed: bool = False


def read_notebook(file: Path) -> Notebook:
    """Read the notebook in a file. Raises InvalidProgram if it is not a notebook of format 4."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or f"not a notebook: {error}"
        raise InvalidProgram(str(file), why, expected="a notebook in JSON (.ipynb)") from error
    return Notebook(file.name, code_cells(document, file.name))


def code_cells(document: object, name: str) -> tuple[Cell, ...]:
    """Return the code cells of a notebook's JSON. Raises InvalidProgram if it has no list of cells."""
    cells = document.get("cells") if isinstance(document, Mapping) else None
    if not isinstance(cells, list):
        step = "Open it in Jupyter and save it, which brings it to format 4."
        raise InvalidProgram(name, "it has no list of cells", expected="a notebook of format 4", next_step=step)
    codes = [cell for cell in cells if isinstance(cell, Mapping) and cell.get("cell_type") == "code"]
    return tuple(Cell(number, _text(cell.get("source"))) for number, cell in enumerate(codes, start=1))


def _text(source: object) -> str:
    """Join a cell's source, which is a string or a list of lines, or missing in an empty cell."""
    if isinstance(source, str):
        return source
    return "".join(line for line in source if isinstance(line, str)) if isinstance(source, Sequence) else ""


def ipython_shell() -> Any | None:
    """Return the running IPython shell, or None; does not import IPython."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def running_notebook(environment: Mapping[str, str] = os.environ, *, as_saved: bool = False) -> Notebook:
    """Return the notebook that this code is called from.

    Raises InvalidProgram if it is not available, or if its file lacks the running cell; `as_saved` accepts such a file.
    """
    shell = ipython_shell()
    if shell is None:
        step = "Name a file: entry_point='train.py'."
        raise InvalidProgram("entry_point", "no notebook is running here", next_step=step)
    document = _from_colab() or _from_kaggle(environment)
    if document is not None:
        return Notebook("notebook.ipynb", code_cells(document, "the notebook"))
    history = shell.history_manager.input_hist_raw
    executed = tuple(Cell(number, text) for number, text in enumerate(history) if text.strip())
    file = _file(shell, environment)
    if file is None:
        note = "the cells that were executed so far are shipped, in their order"
        return Notebook("notebook.ipynb", executed, (note,), executed=True)
    notebook = read_notebook(file)
    saved = {cell.source.strip() for cell in notebook.cells}
    if not as_saved and executed and executed[-1].source.strip() not in saved:
        why, step = "the file does not hold the cell that is running", "Save the notebook, then run the cell again."
        raise InvalidProgram(str(file), why, expected="the notebook as it is shown", next_step=step)
    return notebook


def _file(shell: Any, environment: Mapping[str, str]) -> Path | None:
    names = (shell.user_ns.get("__vsc_ipynb_file__"), environment.get("JPY_SESSION_NAME"))
    paths = (Path(name) for name in names if name and str(name).endswith(".ipynb"))
    return next((path for path in paths if path.is_file()), None)


def _from_colab() -> object | None:
    if "google.colab" not in sys.modules:
        return None
    from google.colab import _message

    answer = _message.blocking_request("get_ipynb", request="", timeout_sec=_SECONDS)
    if not answer:
        step = "Run the cell again, or save the notebook and name it: entry_point='notebook.ipynb'."
        raise InvalidProgram("the notebook", f"Colab did not return it within {_SECONDS} s", next_step=step)
    return answer["ipynb"]  # type: ignore[no-any-return]


def _from_kaggle(environment: Mapping[str, str]) -> object | None:
    if not environment.get("KAGGLE_CONTAINER_NAME"):
        return None
    from kaggle_session import UserSessionClient

    return json.loads(UserSessionClient().get_exportable_ipynb()["source"])  # type: ignore[no-any-return]


# Cell magics like `%%time` that wrap the cell's code; the code is run without them.
TRANSPARENT_CELLS = frozenset({"time", "timeit", "capture", "prun", "memit", "skip"})
# KNOWN: implemented by `notebook_shell` in the trainer. SILENT: ignored there, since they only affect the display.
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
    """The program's text, the requirements lines from its pip commands, and notes for the user."""

    text: str
    requirements: tuple[str, ...]
    notes: tuple[str, ...]


def notebook_to_program(notebook: Notebook) -> NotebookProgram:
    """Convert the notebook into a program. Raises InvalidProgram with the cell and line of a syntax error."""
    body: list[str] = []
    futures: dict[str, None] = {}
    requirements: dict[str, None] = {}
    notes = list(notebook.notes)
    uses_shell = False
    for cell in notebook.cells:
        where = f"{notebook.name}, cell {cell.number}"
        try:
            text = _python(cell, where)
            tree = _parsed(text, where)
        except InvalidProgram as mistake:
            # The input history also holds cells with a syntax error, which the user has since corrected and run again.
            if not notebook.executed:
                raise
            notes.append(f"{mistake.where}: {mistake.found}; the cell is left out")
            continue
        # A bare use of the name `get_ipython` in the user's code also needs the prelude's import.
        uses_shell |= any(isinstance(node, ast.Name) and node.id == "get_ipython" for node in ast.walk(tree))
        for call in _shell_calls(tree):
            notes += _note(call, where)
            for arguments in _pip(call):
                lines, about_pip = requirement_lines(arguments)
                requirements.update(dict.fromkeys(lines))
                notes += [f"{where}: {note}" for note in about_pip]
        body += [f"# %% {where}", _without_futures(text, tree, futures).rstrip("\n"), ""]
    head = [f"from __future__ import {', '.join(futures)}"] if futures else []
    head += [PRELUDE, ""] if uses_shell else []
    return NotebookProgram("\n".join([*head, *body]), tuple(requirements), tuple(notes))


def _python(cell: Cell, where: str) -> str:
    """Return the cell as Python; line numbers are kept where IPython's transformer keeps them."""
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
    # The transformer drops leading empty lines; they are added back so that line numbers still match.
    blank = len(source[: len(source) - len(source.lstrip())].split("\n")) - 1
    try:
        transformer: Any = TransformerManager
        return "\n" * blank + str(transformer().transform_cell(source))
    except SyntaxError as error:
        raise _mistake(error, where) from error


def _parsed(text: str, where: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            # Warnings about invalid escape sequences in the user's strings are not shown.
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
            # compile() also rejects `return` and `await` outside a function, which ast.parse() accepts.
            compile(tree, where, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise _mistake(error, where) from error
    return tree


def _mistake(error: SyntaxError | ValueError, where: str) -> InvalidProgram:
    if not isinstance(error, SyntaxError):
        return InvalidProgram(where, str(error))
    line = f", line {error.lineno}" if error.lineno else ""
    quoted = f": {error.text.strip()}" if error.text and error.text.strip() else ""
    step = "Fix the cell; it runs as a Python program, without IPython."
    if "await" in (error.msg or ""):
        step = "A program has no event loop of its own: write asyncio.run(...)."
    return InvalidProgram(f"{where}{line}", f"{error.msg}{quoted}", next_step=step)


def _without_futures(text: str, tree: ast.Module, futures: dict[str, None]) -> str:
    """Move the `from __future__` imports of `text` to `futures`, for the top of the program; leave empty lines."""
    lines = text.split("\n")
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            futures.update(dict.fromkeys(alias.name for alias in node.names))
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    return "\n".join(lines)


# A call of IPython's shell: `system` or `getoutput` with a command, or `run_line_magic` or `run_cell_magic` with the
# name of the magic and its line.
_Call = tuple[str, ...]


def _shell_calls(tree: ast.Module) -> Iterator[_Call]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="get_ipython")), attr=method)):
                constants = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
                yield method, *(constant for constant in constants if isinstance(constant, str))


def _pip(call: _Call) -> Iterator[str]:
    """Yield the arguments of each `pip install` in the call."""
    match call:
        case ("system", command) | ("run_line_magic" | "run_cell_magic", "pip", command):
            command = command if call[0] == "system" else f"pip {command}"
            yield from filter(None, map(install_arguments, command.split("&&")))


def _note(call: _Call, where: str) -> list[str]:
    match call:
        case ("run_cell_magic", magic, _, *_) if magic not in KNOWN_CELLS | SILENT_CELLS:
            return [f"{where}: %%{magic} is not known in the job; the cell is skipped there"]
        case ("run_line_magic", magic, _) if magic not in KNOWN_LINES | SILENT_LINES:
            return [f"{where}: %{magic} is not known in the job, and is skipped there"]
    return []

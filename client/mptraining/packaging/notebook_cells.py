"""The code cells of a notebook: of a file `.ipynb`, or of the one that is running.

Where the running one is asked, in this order: Colab and Kaggle by their own messages; the file that VS Code or Jupyter
names, if what runs now stands in it; else the cells that were executed, in their order.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

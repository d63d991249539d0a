"""The notebooks of docs/notebooks: real ones, without outputs, which a Jupyter kernel runs from the first cell to the
last with warnings as errors.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


ALL = [pytest.param(path, id=path.name) for path in NOTEBOOKS]


@pytest.mark.parametrize("path", ALL)
def test_it_is_a_notebook_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.cells[0].source.startswith("# ")
    assert all(not cell.outputs and cell.execution_count is None for cell in notebook.cells if cell.cell_type == "code")


def cells(path: Path) -> list[str]:
    """Return the text of each cell of code."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in document["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", ALL)
def test_its_first_cell_installs_only_where_the_package_is_missing(path: Path) -> None:
    first = cells(path)[0]
    assert 'if importlib.util.find_spec("mptraining") is None:\n    %pip install -q mptraining' in first


@pytest.mark.parametrize("path", ALL)
def test_it_runs_from_the_first_cell_to_the_last(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = nbformat.read(path, as_version=4)
    strict = (
        "import warnings\nwarnings.simplefilter('error', UserWarning)\nwarnings.simplefilter('error', RuntimeWarning)"
    )
    notebook.cells.insert(0, nbformat.v4.new_code_cell(strict))
    # `!mptj` is the command beside this interpreter.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for name, value in {"IPYTHONDIR": str(tmp_path / "ipython"), "TF_CPP_MIN_LOG_LEVEL": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    folder = tmp_path / "work"
    folder.mkdir()
    client = NotebookClient(
        notebook, timeout=840, startup_timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    told = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()))
    assert "mptj: " not in told, told
    assert "Traceback" not in told
    assert "Warning" not in told, told

"""The notebooks of docs/notebooks: real ones, without outputs, which a Jupyter kernel runs from the first cell to the
last with warnings as errors.
"""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.e2e.docs import notebooks
from tests.testbed import colab

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


def imported(cell: str) -> set[str]:
    """Return the top-level modules that a cell, or the program that it writes, imports."""
    first, _, rest = cell.partition("\n")
    if first.startswith("%%"):
        text = rest if first.startswith("%%writefile") and first.endswith(".py") else ""
    else:
        text = TransformerManager().transform_cell(cell)
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names


def brought(requirements: Iterable[str]) -> set[str]:
    """Return the names of these distributions and of all that they require, mptraining by its pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found, left = set(), [Requirement(each) for each in requirements]
    while left:
        each = left.pop()
        if (name := canonicalize_name(each.name)) == "mptraining":
            extras = [project["optional-dependencies"][extra] for extra in each.extras]
            required = [line for lines in (project["dependencies"], *extras) for line in lines]
        elif (name, *each.extras) in found:
            continue
        else:
            try:
                required = importlib.metadata.requires(name) or []
            except importlib.metadata.PackageNotFoundError:
                required = []
        found.add((name, *each.extras))
        for line in map(Requirement, required):
            if line.marker is None or any(line.marker.evaluate({"extra": extra}) for extra in ("", *each.extras)):
                left.append(line)
    return {name for name, *_ in found}


def lacking(modules: Iterable[str], distributions: set[str]) -> set[str]:
    """Return the modules that none of these distributions has."""
    # The editable install of this checkout lists no modules.
    owners = importlib.metadata.packages_distributions() | {"mptraining": ["mptraining"]}
    return {each for each in modules if not distributions & {canonicalize_name(name) for name in owners.get(each, ())}}


@pytest.mark.parametrize("path", ALL)
def test_what_it_imports_is_in_colab_and_is_installed_elsewhere_by_its_first_cell(path: Path) -> None:
    first, *rest = cells(path)
    needed = set().union(*map(imported, rest))
    assert "mptraining" in needed
    (elsewhere,) = re.findall(r"Elsewhere:\n# %pip install (.*)", first)
    assert lacking(needed, brought(shlex.split(elsewhere))) == set(), (
        f"outside of Colab, after: pip install {elsewhere}"
    )
    in_colab = {
        *map(canonicalize_name, re.findall(r"^([\w.-]+)==", colab.LOCK.read_text(encoding="utf-8"), re.MULTILINE))
    }
    assert lacking(needed, in_colab | brought(["mptraining"])) == set(), f"in Colab: {colab.LOCK.name}"


def test_a_module_without_its_package_is_found() -> None:
    cell = "%%writefile train.py\nimport keras\nfrom sklearn.datasets import load_digits"
    assert imported(cell) == imported(cell.partition("\n")[2] + "\n!ls\nimport json") == {"keras", "sklearn"}
    assert lacking({"sklearn", "keras", "PIL", "mptraining"}, brought(["mptraining[trainer-cpu]"])) == {"sklearn"}
    assert lacking({"numpy", "keras"}, brought(["mptraining"])) == {"keras"}


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


@pytest.fixture(scope="module")
def in_colab(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """An environment with Colab's packages, and the variables for a cell's `%pip install mptraining`."""
    folder = tmp_path_factory.mktemp("colab")
    return colab.environment(folder / "colab"), colab.index(folder / "wheels")


@pytest.mark.parametrize("path", ALL)
def test_it_runs_with_colabs_packages_which_stay_as_they_are(
    path: Path, in_colab: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    python, variables = in_colab
    before = colab.packages(python)
    environment = {
        **variables,
        # The sources of this checkout must not come before the wheel.
        "PYTHONPATH": "",
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    ran = notebooks.run(tmp_path, *cells(path), python=python, environment=environment)
    assert "mptj: " not in ran.text(), ran.text()
    assert "Traceback" not in ran.text()
    assert before.items() <= colab.packages(python).items()
    colab.check(python)

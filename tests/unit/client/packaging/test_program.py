"""The files that are shipped for a script, a notebook, a folder, a function, and the requirements with them."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
import yaml

import mptraining
from mptraining.packaging import notebooks, program
from mptraining.packaging.notebooks import running_notebook
from mptraining.packaging.package import Package
from mptraining_api.problems import InvalidProgram, InvalidSpec


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def paths(package: Package) -> list[str]:
    return [file.path for file in package.files]


def text(package: Package, path: str) -> str:
    return next(file.content.decode() for file in package.files if file.path == path)


def ipynb(*sources: str) -> str:
    return json.dumps({"cells": [{"cell_type": "code", "source": source} for source in sources]})


def test_a_script_with_its_folder(here: Path) -> None:
    write(here / "other.py")
    write(here / "code" / "flowers" / "model.py")
    made = program.ship_file(write(here / "code" / "train.py"), arguments=["--lr=0.1"])
    assert paths(made) == ["flowers/model.py", "train.py"]
    assert made.program == {"script": {"path": "train.py", "arguments": ["--lr=0.1"]}}
    assert made.requirements is None


def test_a_script_with_a_folder_above_its_own(here: Path) -> None:
    write(here / "flowers.py")
    made = program.ship_file(write(here / "code" / "train.py"), folder=here)
    assert paths(made) == ["code/train.py", "flowers.py"]
    assert made.program == {"script": {"path": "code/train.py"}}
    with pytest.raises(InvalidProgram, match="is not in the folder"):
        program.ship_file(here / "flowers.py", folder=here / "code")


def test_a_notebook_file_becomes_a_program(here: Path) -> None:
    write(here / "flowers.py")
    made = program.ship_file(write(here / "train.ipynb", ipynb("!pip install einops", "import flowers")))
    assert paths(made) == ["flowers.py", "requirements-of-the-job.txt", "train_notebook.py"]
    assert made.program == {"script": {"path": "train_notebook.py"}}
    assert "# %% train.ipynb, cell 2\nimport flowers\n" in text(made, "train_notebook.py")
    assert text(made, "requirements-of-the-job.txt") == "einops\n"
    assert made.requirements == "requirements-of-the-job.txt"


def test_a_file_that_is_missing_or_ignored(here: Path) -> None:
    write(here / "train.py")
    with pytest.raises(InvalidProgram, match=r"no file 'trian.py'.*Did you mean 'train.py'\?"):
        program.ship_file(Path("trian.py"))
    write(here / ".mptrainingignore", "train.py")
    with pytest.raises(InvalidProgram, match=r"left out of the package. Add !/train.py to .mptrainingignore"):
        program.ship_file(Path("train.py"))


def test_an_entry_point_with_the_folder_it_is_imported_from(here: Path) -> None:
    write(here / "flowers" / "__init__.py")
    write(here / "flowers" / "model.py")
    made = program.ship_entry_point("flowers.model:build")
    assert made.program == {"function": {"entryPoint": "flowers.model:build"}}
    assert paths(made) == ["flowers/__init__.py", "flowers/model.py"]
    write(here / "blumen.py")
    with pytest.raises(InvalidProgram, match=r"no module 'blume' in .*Did you mean 'blumen'\?"):
        program.ship_entry_point("blume:build")


# Requirements.


def test_a_requirements_file_is_shipped_from_wherever_it_is(here: Path) -> None:
    script = write(here / "code" / "train.py")
    inside = program.ship_file(script, requirements=write(here / "code" / "deps" / "reqs.txt", "einops\n-r more.txt\n"))
    assert inside.requirements == "deps/reqs.txt"
    assert text(inside, "deps/reqs.txt") == "einops\n-r more.txt\n"
    outside = program.ship_file(script, requirements=write(here / "reqs.txt", "einops\n"))
    assert outside.requirements == "requirements-of-the-job.txt"
    assert text(outside, "requirements-of-the-job.txt") == "einops\n"
    write(here / "code" / ".mptrainingignore", "*.txt")
    ignored = program.ship_file(script, requirements=write(here / "code" / "reqs.txt", "einops\n"))
    assert (ignored.requirements, paths(ignored)) == ("reqs.txt", ["reqs.txt", "train.py"])


def test_a_file_that_a_notebook_s_pip_reads_is_shipped(running: Any, here: Path) -> None:
    write(here / "reqs.txt", "einops\n")
    running("%pip install -q -r reqs.txt\ntfc.run()")
    made = program.ship_running_notebook()
    assert paths(made) == ["notebook_program.py", "reqs.txt", "requirements-of-the-job.txt"]
    assert text(made, "requirements-of-the-job.txt") == "-r reqs.txt\n"


def test_tensorflow_cloud_itself_is_never_installed(here: Path) -> None:
    write(here / "train.ipynb", ipynb("%pip install seaborn"))
    made = program.ship_file(
        Path("train.ipynb"), requirements=write(here / "d" / "r.txt", "tensorflow_cloud>=0.1\na\n")
    )
    assert made.requirements == "d/requirements-of-the-job.txt"
    assert text(made, made.requirements) == "a\nseaborn\n"
    assert made.notes[-1].endswith("has its own tensorflow-cloud; 'tensorflow_cloud>=0.1' is left out")
    write(here / "only.txt", "tensorflow-cloud\n")
    assert program.ship_file(here / "train.ipynb", requirements=here / "only.txt").requirements is not None
    write(here / "train.py")
    assert program.ship_file(here / "train.py", requirements=here / "only.txt").requirements is None


# Functions.


@pytest.fixture
def module(here: Path) -> Iterator[Callable[[str, str], ModuleType]]:
    names: list[str] = []

    def load(name: str, code: str) -> ModuleType:
        file = write(here / "code" / f"{name.replace('.', '/')}.py", code)
        spec = importlib.util.spec_from_file_location(name, file)
        loaded = importlib.util.module_from_spec(spec)
        sys.modules[name] = loaded
        names.append(name)
        spec.loader.exec_module(loaded)
        return loaded

    yield load
    for name in names:
        del sys.modules[name]


def test_a_function_of_a_module_ships_its_folder(here: Path, module: Any) -> None:
    build = module("roses.model", "def build(): ...").build
    write(here / "code" / "other.py")
    made = program.ship_function(build)
    assert made.program == {"function": {"entryPoint": "roses.model:build"}}
    assert paths(made) == ["other.py", "roses/model.py"]
    # One that trains is called by a script.
    train = module("tulips", "def train(rate=0.1): print(rate)").train
    document, made = program.function_job(train, args=[(1, None)], kwargs={"rate": 0.5}, accelerator="T4", workers=2)
    assert re.fullmatch(r"train-[0-9a-f]{6}", document["metadata"]["name"])
    expected = {"accelerator": {"type": "t4"}, "workers": 2, "program": {"script": {"path": "run_train.py"}}}
    expected["runPolicy"] = {"backoffLimit": 0}
    assert document["spec"] == expected
    assert "from tulips import train" in text(made, "run_train.py")
    assert "        returned.value = train((1, None), rate=0.5)\n" in text(made, "run_train.py")
    with pytest.raises(InvalidProgram, match=r"^args: <object.*of type object; expected literals of Python\. Give"):
        program.function_job(train, args=[object()])
    with pytest.raises(InvalidSpec, match=r"^accelerator: unknown accelerator 't5'"):
        mptraining.run_local(train, accelerator="t5")
    with pytest.raises(InvalidSpec, match=r"^workers: 5000 is not valid"):
        mptraining.submit(train, workers=5000)
    with pytest.raises(InvalidProgram, match="yaml is an installed package, which is not shipped"):
        program.ship_function(yaml.safe_load)


class Shell:
    """The part of IPython's shell that is used: the source of the executed cells."""

    def __init__(self, *executed: str, **names: str) -> None:
        self.history_manager = self
        self.input_hist_raw = ["", *executed]
        self.user_ns = names


@pytest.fixture
def running(here: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Simulates a notebook that has executed these cells."""

    def run(*executed: str, **names: str) -> None:
        shell = Shell(*executed, **names)
        for module in (notebooks, program):
            monkeypatch.setattr(module, "ipython_shell", lambda: shell)

    return run


def test_a_function_of_a_notebook_ships_what_it_needs(here: Path, running: Any) -> None:
    write(here / "layers.py", "import deeper")
    write(here / "deeper" / "__init__.py")
    write(here / "deeper" / "table.csv")
    write(here / "huge.csv")
    running("import layers\nSIZE = 3", "model = 1 / 0", "def build(): return layers.dense(SIZE)", "run(build)")
    space: dict[str, Any] = {"__name__": "__main__"}
    exec("def build(): ...", space)
    made = program.ship_function(space["build"])
    assert made.program == {"function": {"entryPoint": "notebook_program:build"}}
    assert paths(made) == ["deeper/__init__.py", "deeper/table.csv", "layers.py", "notebook_program.py"]
    lines = [line for line in text(made, "notebook_program.py").splitlines() if line]
    assert [line for line in lines if not line.startswith("#")] == [
        "import layers", "SIZE = 3", "def build(): return layers.dense(SIZE)",
    ]  # fmt: skip
    assert lines[4] == "# %% notebook.ipynb, cell 3"


# The running notebook.


def test_the_running_notebook_by_what_was_executed(running: Any) -> None:
    running("x = 1", "  ", "tfc.run()")
    made = program.ship_running_notebook(arguments=["a"])
    assert made.program == {"script": {"path": "notebook_program.py", "arguments": ["a"]}}
    assert made.notes == ("the cells that were executed so far are shipped, in their order",)
    assert "cell 3\ntfc.run()" in text(made, "notebook_program.py")


def test_a_cell_that_was_mistyped_and_typed_again(running: Any) -> None:
    running("x = (1", "x = 1", "tfc.run()")
    made = program.ship_running_notebook()
    assert made.notes[1] == "notebook.ipynb, cell 1, line 1: '(' was never closed: x = (1; the cell is left out"
    assert text(made, "notebook_program.py").startswith("# %% notebook.ipynb, cell 2\nx = 1\n")


@pytest.mark.parametrize("how", ["jupyter", "vscode"])
def test_the_running_notebook_by_its_file(here: Path, running: Any, how: str) -> None:
    file = str(write(here / "a.ipynb", ipynb("x = 1", "not yet executed", "tfc.run()\n")))
    running("x = 1", "tfc.run()", **({"__vsc_ipynb_file__": file} if how == "vscode" else {}))
    found = running_notebook({"JPY_SESSION_NAME": file} if how == "jupyter" else {})
    assert [cell.source for cell in found.cells] == ["x = 1", "not yet executed", "tfc.run()\n"]


def test_a_notebook_that_was_not_saved(here: Path, running: Any) -> None:
    with pytest.raises(InvalidProgram, match="no notebook is running here"):
        running_notebook({})
    file = str(write(here / "a.ipynb", ipynb("x = 1")))
    running("x = 1", "tfc.run()")
    with pytest.raises(InvalidProgram, match=r"does not hold the cell that is running.*Save the notebook"):
        running_notebook({"JPY_SESSION_NAME": file})


def test_colab_and_kaggle_hand_the_notebook_out(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Message:
        answer: ClassVar[Any] = {"ipynb": json.loads(ipynb("!pip install x", ""))}

        def blocking_request(self, kind: str, request: str, timeout_sec: int) -> Any:
            asked.append((kind, request, timeout_sec))
            return self.answer

    colab, session = ModuleType("google.colab"), ModuleType("kaggle_session")
    colab._message = Message()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "google.colab", colab)
    running("tfc.run()")
    assert [cell.source for cell in running_notebook({}).cells] == ["!pip install x", ""]
    assert asked == [("get_ipynb", "", 60)]
    Message.answer = None
    with pytest.raises(InvalidProgram, match="Colab did not return it within 60 s"):
        running_notebook({})
    session.UserSessionClient = lambda: session  # type: ignore[attr-defined]
    session.get_exportable_ipynb = lambda: {"source": ipynb("x = 1")}  # type: ignore[attr-defined]
    monkeypatch.delitem(sys.modules, "google.colab")
    monkeypatch.setitem(sys.modules, "kaggle_session", session)
    assert running_notebook({"KAGGLE_CONTAINER_NAME": "k"}).cells[0].source == "x = 1"

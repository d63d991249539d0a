"""A notebook as a program: the replacement of magics, the installed packages, and the cell of a mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mptraining.packaging import notebooks
from mptraining.packaging.notebooks import (
    Cell,
    Notebook,
    NotebookProgram,
    code_cells,
    notebook_to_program,
    read_notebook,
)
from mptraining_api.problems import InvalidProgram
from mptraining_trainer import notebook_shell
from mptraining_trainer.notebook_shell import source_location


def made(*sources: str) -> NotebookProgram:
    cells = (Cell(number, source) for number, source in enumerate(sources, start=1))
    return notebook_to_program(Notebook("train.ipynb", tuple(cells)))


def run(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program as a job would, without IPython: its import fails."""
    (folder / "IPython.py").write_text("raise ImportError('there is no IPython in a job')")
    (folder / "program.py").write_text(text)
    return subprocess.run(
        [sys.executable, "program.py"], cwd=folder, capture_output=True, check=False, text=True, timeout=240
    )


def test_cells_keep_their_order_and_their_strings(tmp_path: Path) -> None:
    # tensorflow-cloud deletes lines that begin with #, % or !, anywhere.
    source = "text = '''\n# title\n%percent\n!shout\n'''\nprint(text)"
    text = made("x = 1", "", source).text
    first = "# %% train.ipynb, cell 1\nx = 1\n\n# %% train.ipynb, cell 2\n\n\n# %% train.ipynb, cell 3\ntext = "
    assert text.startswith(first)
    assert run(text, tmp_path).stdout == "\n# title\n%percent\n!shout\n\n"


@pytest.mark.parametrize(
    ("cells", "printed"),
    [
        pytest.param(
            [
                # tensorflow-cloud turns the first one into a SyntaxError.
                "if True:\n    !echo inside; exit 3",
                "name = 'roses'\nlines = !echo {name}; echo $name\nprint(lines)",
                "!echo ${HOME:+home} $name",
                "%env COLOUR=red\n!echo $COLOUR\nprint(get_ipython().run_line_magic('env', 'COLOUR'))",
                "%%bash\nfor i in 1 2; do echo bash $i; done",
                "%mkdir below\n%cd below\nx = %pwd\nprint(x.endswith('below'))",
            ],
            "inside\n['roses', 'roses']\nhome roses\nred\nred\nbash 1\nbash 2\nTrue\n",
            id="commands run in their place",
        ),
        pytest.param(
            # tensorflow-cloud runs the content of the files.
            ["%%writefile flowers.py\nCOLOUR = 'red'\n", "%%writefile -a flowers.py\nSIZE = 3\n",
             "import flowers\nprint(flowers.COLOUR, flowers.SIZE)"],
            "red 3\n",
            id="written files are files",
        ),
        pytest.param(
            ["%%time\na = 2", "%time b = 2", "%%capture out\nc = 2", "d = %time 1 + 1", "%timeit e = 2",
             "\n%%time\nf = 2", "print(a, b, c, d, e, f)"],
            "2 2 2 2 2 2\n",
            id="timed code is code",
        ),
        pytest.param(
            ["%matplotlib inline", "%load_ext tensorboard\n%tensorboard --logdir logs", "?print", "%%html\n<b>",
             "from __future__ import annotations\nprint(1)"],
            "1\n",
            id="display magics are ignored",
        ),
    ],
)  # fmt: skip
def test_a_program_prints_what_its_cells_print(cells: list[str], printed: str, tmp_path: Path) -> None:
    program = made(*cells)
    assert program.notes == ()
    done = run(program.text, tmp_path)
    assert (done.stdout, done.stderr) == (printed, "")


def test_an_unknown_magic_is_reported(tmp_path: Path) -> None:
    program = made("%store x", "%%R\nplot(1)", "print(1)")
    assert program.notes == (
        "train.ipynb, cell 1: %store is not known in the job, and is skipped there",
        "train.ipynb, cell 2: %%R is not known in the job; the cell is skipped there",
    )
    done = run(program.text, tmp_path)
    assert done.stdout == "1\n"
    assert done.stderr == "%store is not known here, and is passed over\n%%R is not known here, and is passed over\n"


def test_client_and_trainer_know_the_same_magics() -> None:
    shell = Path(notebook_shell.__file__).read_text(encoding="utf-8")
    silent = notebooks.SILENT_LINES | notebooks.SILENT_CELLS
    assert silent == notebook_shell._SILENT
    known = notebooks.KNOWN_LINES | notebooks.KNOWN_CELLS
    assert {name for name in known if f'"{name}"' not in shell} == set()


def test_installed_packages_become_requirements(tmp_path: Path) -> None:
    program = made(
        "!pip install -q einops>=0.8 tensorflow-cloud",
        "%pip install -U 'tensorflow==2.15' wordcloud",
        "if True:\n    !pip install seaborn && pip3 install einops>=0.8",
        "!python -m pip install git+https://example.com/x.git --extra-index-url https://example.com/simple",
        "version = 3\n!pip install thing=={version} ./local --frobnicate",
        "!apt-get -q install cowsay || true",
    )
    assert program.requirements == (
        "einops>=0.8", "wordcloud", "seaborn", "git+https://example.com/x.git",
        "--extra-index-url https://example.com/simple",
    )  # fmt: skip
    assert program.notes == (
        "train.ipynb, cell 1: pip install tensorflow-cloud: the trainer's image has its own tensorflow-cloud",
        "train.ipynb, cell 2: pip install tensorflow==2.15: the trainer's image has its own tensorflow",
        "train.ipynb, cell 5: pip install thing=={version}: known only when the notebook runs; not installed",
        "train.ipynb, cell 5: pip install ./local: a local folder is not shipped; not installed",
        "train.ipynb, cell 5: pip's --frobnicate is not known in the job, and is ignored",
    )
    assert run(made("!pip install nothing-of-this-name\n%pip install x").text, tmp_path).stderr == ""


@pytest.mark.parametrize(
    ("sources", "mistake"),
    [
        (["x = 1", "y = (\n"], "train.ipynb, cell 2, line 1: '(' was never closed: y = ("),
        (["", "x = 1\n\n  y = 2"], "train.ipynb, cell 2, line 3: unexpected indent: y = 2"),
        (["\n\nfor"], "train.ipynb, cell 1, line 3: invalid syntax: for"),
        (["await f()"], "train.ipynb, cell 1, line 1: 'await' outside function. A program has no event loop"),
    ],
)
def test_a_mistake_names_its_cell_and_line(sources: list[str], mistake: str) -> None:
    with pytest.raises(InvalidProgram) as caught:
        made(*sources)
    assert str(caught.value).startswith(mistake)


def test_the_place_of_an_error_is_its_cell(tmp_path: Path) -> None:
    text = made("x = 1\n", "!true", "\n\nx = 2\nprint(1 / 0)").text
    done = run(text, tmp_path)
    line = int(done.stderr.partition('program.py", line ')[2].partition(",")[0])
    assert source_location(str(tmp_path / "program.py"), line) == "train.ipynb, cell 3, line 4"
    assert source_location(str(tmp_path / "program.py"), 1) == f"{tmp_path / 'program.py'}:1"
    assert source_location(str(tmp_path / "nowhere.py"), 3) == f"{tmp_path / 'nowhere.py'}:3"


def test_without_ipython_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython.core.inputtransformer2", None)
    with pytest.raises(InvalidProgram, match=r"pip install 'mptraining\[notebook\]'"):
        made("x = 1")


def test_a_file_s_code_cells_are_counted(tmp_path: Path) -> None:
    cells = (("markdown", "# Title"), ("code", ["x = 1\n", "y = 2"]), ("code", []), ("raw", "raw"), ("code", "z"))
    document = {"nbformat": 4, "cells": [{"cell_type": kind, "source": source} for kind, source in cells]}
    (tmp_path / "a.ipynb").write_text(json.dumps(document))
    assert read_notebook(tmp_path / "a.ipynb").cells == (Cell(1, "x = 1\ny = 2"), Cell(2, ""), Cell(3, "z"))
    assert code_cells({"cells": [{"cell_type": "code"}]}, "a") == (Cell(1, ""),)


@pytest.mark.parametrize(
    ("content", "mistake"),
    [
        ("not json", "not a notebook"),
        ('{"worksheets": [], "nbformat": 3}', "it has no list of cells; expected a notebook of format 4. Open it in"),
    ],
)
def test_what_is_no_notebook(content: str, mistake: str, tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_text(content)
    with pytest.raises(InvalidProgram, match=mistake):
        read_notebook(tmp_path / "a.ipynb")

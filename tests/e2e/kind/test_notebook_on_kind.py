"""The notebook of docs/guide/notebooks.md: a real Jupyter kernel submits to a real cluster and uses the model."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.kind import notebooks
from tests.testbed import colab

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs" / "guide" / "notebooks.md"
HEADING = "\n## A first job from a notebook\n"


def first_job() -> tuple[str, str, str]:
    """Return the name of the program in the guide's section, its text, and the cell."""
    section = DOCUMENT.read_text(encoding="utf-8").split(HEADING)[1].split("\n## ")[0]
    program, cell = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    name = program.splitlines()[0].removeprefix("# ")
    assert name.endswith(".py")
    return name, program, cell


def surroundings(kind: Any, folder: Path) -> dict[str, str]:
    """The kernel's environment: a kubeconfig whose namespace is the tests', and an empty home."""
    document = yaml.safe_load(kind.kubeconfig.read_text(encoding="utf-8"))
    for each in document["contexts"]:
        each["context"]["namespace"] = kind.namespace
    (folder / "kubeconfig").write_text(yaml.safe_dump(document))
    return {
        "KUBECONFIG": str(folder / "kubeconfig"),
        "HOME": str(folder / "home"),
        "XDG_CACHE_HOME": str(folder / "home" / ".cache"),
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


def executed(
    kind: Any, folder: Path, cell: str, *, python: Path = Path(sys.executable), more: dict[str, str] | None = None
) -> notebooks.Ran:
    """The outputs of the cell that writes the program, and of the guide's cell."""
    name, program, _ = first_job()
    work = folder / "work"
    work.mkdir()
    (folder / "home").mkdir()
    # Another cell prints the predictions, so that they come from the notebook's own model.
    look = "import json, numpy as np\nprint(json.dumps(np.asarray(predicted).ravel().tolist()), job['job_id'])"
    cells = [f"%%writefile {name}\n{program}", cell, look]
    ran = notebooks.run(work, *cells, python=python, environment={**surroundings(kind, folder), **(more or {})})
    answer, job = re.findall(r"^\[([\d.]+)\] (\S+)$", ran.text(2), re.MULTILINE)[0]
    # The program learns to add three numbers, here 1, 2 and 3.
    assert float(answer) == pytest.approx(6, abs=0.2)
    # It printed its progress during the training, before it printed that the job had ended.
    assert ran.seconds(r"Pending|Running") < ran.seconds(r"<progress|step \d+") < ran.seconds("Succeeded")
    assert ran.seconds("fetched the model") <= ran.seconds("Succeeded")
    # The pod was notified that its model was fetched: it ends without waiting its ten minutes.
    status = kind.finished(job, seconds=300)
    assert [each["outcome"] for each in status["attempts"]] == ["Succeeded"]
    return ran


def test_the_guides_cell_trains_on_the_cluster_and_predicts(kind: Any, tmp_path: Path) -> None:
    _, _, cell = first_job()
    executed(kind, tmp_path, cell)


def test_a_notebook_for_tensorflow_cloud_keeps_its_import_line(kind: Any, tmp_path: Path) -> None:
    _, _, cell = first_job()
    ours = "import mptraining.tensorflow_cloud as tfc"
    assert ours in cell
    executed(kind, tmp_path, cell.replace(ours, "import mptraining.colab\nimport tensorflow_cloud as tfc"))


def test_colabs_packages_stay_as_they_are_and_the_cell_runs(kind: Any, tmp_path: Path) -> None:
    """An environment with Colab's versions, into which the guide's own `%pip install` installs the wheel."""
    _, _, cell = first_job()
    assert cell.startswith("%pip install")
    python = colab.environment(tmp_path / "colab")
    before = colab.packages(python)
    executed(kind, tmp_path, cell, python=python, more=colab.index(tmp_path / "wheels"))
    after = colab.packages(python)
    assert before.items() <= after.items()
    assert {"mptraining", "kubernetes"} <= after.keys() - before.keys()
    colab.check(python)

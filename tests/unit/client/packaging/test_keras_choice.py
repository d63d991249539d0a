"""The generation of Keras that a program's text selects, and the message about it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import mptraining.tensorflow_cloud as tfc
from mptraining.cluster import submission
from mptraining.packaging.keras_choice import with_keras
from mptraining.packaging.package import Package, SourceFile, build_package


@pytest.fixture(autouse=True)
def no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)


SCRIPT = {"script": {"path": "jobs/train.py"}}
OLDER = "import tensorflow as tf\nmodel.fit(x, y)\nprint(model.optimizer.lr)\nmodel.save('folder')\n"


def shipped(files: Mapping[str, str], requirements: str | None = None, program: Any = SCRIPT) -> Package:
    sources = [SourceFile.of_text(path, text) for path, text in files.items()]
    if requirements is not None:
        sources.append(SourceFile.of_text("r.txt", requirements))
    return build_package(sources, program=program, requirements="r.txt" if requirements is not None else None)


def job(program: Any = SCRIPT, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a"}, "spec": {"program": program, **spec}}


def decided(*given: Any, **more: Any) -> tuple[dict[str, Any], list[str]]:
    changed, _, notes = with_keras(*given, **more)
    return changed, notes


def test_a_program_for_keras_2_gets_tf_keras_and_a_message_with_the_line() -> None:
    message = (
        "keras: Legacy (tf_keras) is chosen: the program is written for Keras 2: "
        "jobs/train.py, line 3: model.optimizer.lr (learning_rate is its name in Keras 3), and 1 more"
    )
    package = shipped({"jobs/train.py": OLDER})
    for written in (job(), job(keras="Auto")):
        assert decided(written, package) == (job(keras="Legacy"), [message])
    for keras in ("Keras3", "Legacy"):
        assert decided(job(keras=keras), package) == (job(keras=keras), [])


FUNCTION = {"function": {"entryPoint": "flowers.model:build"}}


@pytest.mark.parametrize(
    ("program", "files", "keras"),
    [
        (SCRIPT, {"jobs/train.py": "from models import build\n", "models.py": OLDER}, "Legacy"),
        (SCRIPT, {"jobs/train.py": "from models import build\n", "jobs/models.py": OLDER}, "Legacy"),
        (SCRIPT, {"jobs/train.py": "import models\n", "models/__init__.py": "from models import vision",
                  "models/vision.py": OLDER}, "Legacy"),
        (SCRIPT, {"jobs/train.py": "import other", "models.py": OLDER}, None),
        (FUNCTION, {"flowers/model.py": OLDER}, "Legacy"),
    ],
)  # fmt: skip
def test_modules_count_that_the_program_imports_and_no_others(
    program: dict[str, Any], files: dict[str, str], keras: str | None
) -> None:
    changed, _ = decided(job(program), shipped(files, program=program))
    assert changed["spec"].get("keras") == keras


IMAGE = "tensorflow/tensorflow:2.3.0-gpu"


@pytest.mark.parametrize(
    ("text", "requirements", "image", "variable", "sign"),
    [
        ("", "numpy\ntensorflow==2.3.0\n", None, "0", "r.txt, line 2: tensorflow==2.3.0 (of Keras 2)"),
        ("", None, IMAGE, "0", f"image {IMAGE} (of Keras 2)"),
        ("", None, None, "1", "TF_USE_LEGACY_KERAS in the environment (tf.keras is tf_keras here)"),
        ("", None, None, "0", None),
        ("tf.keras.ops.square(2.0)\n", "tensorflow<2.16\n", IMAGE, "0", None),
    ],
)
def test_signs_beside_the_program(
    text: str,
    requirements: str | None,
    image: str | None,
    variable: str,
    sign: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", variable)
    package = shipped({"jobs/train.py": f"import tensorflow as tf\n{text}"}, requirements)
    changed, notes = decided(job(), package, image=image)
    assert changed == (job() if sign is None else job(keras="Legacy"))
    assert [note.partition("for Keras 2: ")[2] for note in notes] == ([] if sign is None else [sign])


def test_what_tf_keras_ignores_and_the_cell_of_a_notebook_are_named() -> None:
    text = f"{OLDER}tf.keras.optimizers.Adam(lr=0.1)\n"
    _, notes = decided(job(), shipped({"jobs/train.py": text}))
    assert notes[1] == "jobs/train.py, line 5: Adam(lr=) (tf_keras ignores it: write learning_rate=)"
    text = f"# %% a.ipynb, cell 1\nimport tensorflow as tf\n\n# %% a.ipynb, cell 2\n{OLDER}"
    _, notes = decided(job(), shipped({"jobs/train.py": text}))
    assert "a.ipynb, cell 2, line 3: model.optimizer.lr" in notes[0]


def test_keras_imported_by_itself_is_keras_3() -> None:
    made, _, notes = with_keras(job(), shipped({"jobs/train.py": f"import keras\n{OLDER}"}))
    assert made == job()
    assert notes[0].endswith("import it from tensorflow, for which keras: Legacy is chosen")


def test_keras_tuner_is_of_the_same_generation() -> None:
    requirements = "numpy\nkeras_tuner  # search\nkeras-tuner==1.4.8\nkeras-tuner-cv\n"
    _, made, notes = with_keras(job(), shipped({"jobs/train.py": OLDER}, requirements))
    text = next(file.content for file in made.files if file.path == "r.txt").decode()
    assert text == "numpy\nkeras-tuner<1.4  # search\nkeras-tuner==1.4.8\nkeras-tuner-cv\n"
    assert "r.txt: keras-tuner<1.4 is installed, since later releases take models of Keras 3 alone" in notes
    plain = shipped({"jobs/train.py": "import tensorflow"}, requirements)
    assert with_keras(job(), plain) == (job(), plain, [])


def test_run_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Job:
        warnings = ()
        name = "a"

        def __init__(self, document: Any, **_: Any) -> None:
            self.document = document

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(submission, "submit", Job)
    Path("train.py").write_text(OLDER)
    made: Any = tfc.run("train.py")
    assert made.document["spec"]["keras"] == "Legacy"
    assert "note: keras: Legacy (tf_keras) is chosen" in capsys.readouterr().out

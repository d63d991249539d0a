"""From `module:name` to a function, and every way in which that name can be wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mptraining_api.problems import InvalidProgram
from mptraining_trainer.job.user_code import import_entry_point

WHERE = "spec.program.function.entryPoint"

FLOWERS = """
LAYERS = 3

def build():
    return "flowers"
"""


@pytest.fixture(autouse=True)
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's source folder, on sys.path as the trainer adds it."""
    (tmp_path / "flowers").mkdir()
    (tmp_path / "flowers" / "__init__.py").touch()
    (tmp_path / "flowers" / "model.py").write_text(FLOWERS)
    (tmp_path / "needy.py").write_text("import a_package_that_does_not_exist\n")
    (tmp_path / "broken.py").write_text("def build(:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in ("flowers", "needy", "broken")]:
        del sys.modules[name]


def test_a_function_by_its_name() -> None:
    assert import_entry_point("flowers.model:build", WHERE)() == "flowers"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("flowerz.model:build", "Did you mean 'flowers'?"),
        ("flowers.modle:build", "Did you mean 'model'?"),
        ("flowers.model:biuld", "Did you mean 'build'?"),
        ("flowers.model:LAYERS", "expected a function"),
        ("needy:build", "Add 'a_package_that_does_not_exist' to source.requirements"),
        ("needy:build", "needy.py:1"),
        ("broken:build", "broken.py:1"),
    ],
)
def test_a_wrong_name_is_answered_with_the_next_step(name: str, says: str) -> None:
    with pytest.raises(InvalidProgram) as caught:
        import_entry_point(name, WHERE)
    assert caught.value.where == WHERE
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_module_that_is_nowhere_is_looked_for_in_the_source_folder_alone(source: Path) -> None:
    with pytest.raises(InvalidProgram) as caught:
        import_entry_point("nothing:build", WHERE)
    step = "Put the code there, or into an installed package."
    assert str(caught.value) == f"{WHERE}: no module 'nothing' (searched {source}). {step}"


def test_a_module_that_submits_itself_finds_something_to_import(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow_cloud", raising=False)
    (source / "flowers" / "cloudy.py").write_text(
        "import tensorflow_cloud as tfc\n"
        "tfc.run(chief_config=tfc.COMMON_MACHINE_CONFIGS['CPU'])\n"
        "def build(): return 3\n"
    )
    assert import_entry_point("flowers.cloudy:build", WHERE)() == 3

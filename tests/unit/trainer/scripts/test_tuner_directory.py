"""The directories of a script's tuners, with a package that has the names of KerasTuner's that are changed."""

from __future__ import annotations

import importlib
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mptraining_api.problems import InvalidProgram
from mptraining_trainer.scripts.tuner_folder import TunerFolder
from mptraining_trainer.scripts.tuner_search import TunerSearch

PACKAGE = {
    "__init__.py": "from keras_tuner.engine.base_tuner import BaseTuner\nclass Tuner(BaseTuner): ...\n",
    "utils.py": "def save_json(path, obj):\n    raise AssertionError('leaves half of a file')\n",
    "engine/__init__.py": "",
    "engine/base_tuner.py": """
from keras_tuner import utils
class BaseTuner:
    def __init__(self, oracle, hypermodel=None, directory=None, project_name=None, overwrite=False, **kwargs):
        self.directory, self.overwrite = directory, overwrite
    def search(self):
        self.searched = True
    def save(self):
        utils.save_json(f"{self.directory}/tuner0.json", {})
""",
}


class Recorder:
    """The trainer's callbacks, recorded."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def check_stop(self) -> None: ...

    def on_trial(self, trial: Any, folder: TunerFolder) -> None: ...

    def notice(self, topic: str, message: str, *, level: str = "Info") -> None:
        self.notices.append(topic)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with the names of KerasTuner's that are changed; tests marked `training` use the real one."""
    for name, text in PACKAGE.items():
        path = tmp_path / "packages" / "keras_tuner" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in [name for name in sys.modules if name.partition(".")[0] == "keras_tuner"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_tuner_s_directory_is_in_the_run_folder(package: Path) -> None:
    recorder, run = Recorder(), package / "run"
    with TunerSearch(TunerFolder(str(run), ExitStack()), recorder).around_script():
        tuner = importlib.import_module("keras_tuner").Tuner
        made = [
            tuner(None, directory="search", project_name="p", overwrite=True),
            tuner(None, directory=str(package / "search"), project_name="p", overwrite=True),
            tuner(None, directory="search", project_name="p"),
            tuner(None, project_name="other", overwrite=True),
            tuner(None, directory=f"{tempfile.gettempdir()}/tb", overwrite=True),
            tuner(None, directory="/elsewhere", overwrite=True),
        ]
        (run / "tuner" / "search").mkdir(parents=True)
        made[0].save()
    below = run / "tuner"
    wanted = [below / "search", below / "search-2", below / "search-2", below, below / "tmp" / "tb", Path("/elsewhere")]
    assert [Path(each.directory) for each in made] == wanted
    assert [each.overwrite for each in made] == [False, False, False, False, False, True]
    assert recorder.notices == ["TunerDirectory"]
    assert (below / "search" / "tuner0.json").read_text() == "{}"
    assert Path(tuner(None, directory="search").directory) == Path("search"), "outside of the block nothing is changed"


def test_a_search_on_workers_that_train_together_is_refused(package: Path) -> None:
    with TunerSearch(TunerFolder(str(package), ExitStack()), Recorder(), workers=2).around_script():
        tuner = importlib.import_module("keras_tuner").Tuner(None)
        with pytest.raises(InvalidProgram, match=r"trains a trial on one worker, and the job has 2.*MPTrainingSweep"):
            tuner.search()

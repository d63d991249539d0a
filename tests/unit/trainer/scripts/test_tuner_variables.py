"""The processes of a search with KerasTuner on several nodes: devices, strategy, and KerasTuner's variables."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mptraining_api.launch import TRAINER_PORT, WorkerIdentity
from mptraining_api.problems import InvalidProgram
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import MPTrainingJob
from mptraining_trainer.scripts.tuner_folder import TunerFolder
from mptraining_trainer.scripts.tuner_search import (
    ORACLE_IP,
    ORACLE_PORT,
    TUNER_ID,
    SearchEnded,
    TunerSearch,
    oracle_variables,
)


def resolved(*, cpu_fallback: bool = False, tuner: str | None = "KerasTuner", **spec: Any) -> ResolvedJob:
    document = {
        "accelerator": {"type": "nvidia-tesla-t4", "countPerNode": 4},
        "nodes": 3,
        "program": {"script": {"path": "tune.py"} | ({"tuner": tuner} if tuner else {})},
        "output": {"uri": "gs://bucket/run"},
    } | spec
    return resolve(
        MPTrainingJob.parse({"metadata": {"name": "tune"}, "spec": document}),
        ClusterSettings(cpu_fallback=cpu_fallback),
    )


def identity(index: int) -> WorkerIdentity:
    hosts = tuple(f"tune-1-{each}.mptraining-workers:{TRAINER_PORT}" for each in range(3))
    return WorkerIdentity(index=index, hosts=hosts, attempt=1, incarnation="a")


def test_each_tuner_trains_on_its_own_devices() -> None:
    together = resolved()
    assert (together.processes, together.replicas_per_process, together.replicas) == (3, 4, 4)
    assert (together.strategy, together.keras) == ("Mirrored", "Keras3")
    assert together.searches_together
    apart = resolved(tuner=None)
    assert (apart.replicas, apart.strategy, apart.keras) == (12, "MultiWorkerMirrored", "Legacy")
    assert not apart.searches_together


def test_a_tuner_with_one_device_has_no_strategy_without_accelerators_too() -> None:
    one = {"type": "nvidia-tesla-t4", "countPerNode": 1}
    assert resolved(accelerator=one).strategy == "None"
    fallback = resolved(cpu_fallback=True, accelerator=one)
    assert (fallback.processes, fallback.replicas, fallback.strategy) == (3, 1, "None")


def test_worker_0_is_the_chief_and_each_other_worker_a_tuner() -> None:
    assert oracle_variables(identity(0))[TUNER_ID] == "chief"
    assert [oracle_variables(identity(index))[TUNER_ID] for index in (1, 2)] == ["tuner1", "tuner2"]


@pytest.mark.parametrize("index", [0, 2])
def test_the_oracle_listens_where_no_other_pod_may_connect(index: int) -> None:
    """On the port of the workers, from which the job's NetworkPolicy keeps all other pods."""
    found = oracle_variables(identity(index))
    assert found[ORACLE_IP] == "tune-1-0.mptraining-workers"
    assert found[ORACLE_PORT] == str(TRAINER_PORT)


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

    def wait(self, seconds: float) -> bool:
        return False

    def on_trial(self, trial: Any, folder: TunerFolder) -> None: ...

    def on_oracle(self, ended: int, trials: Any, metrics: Mapping[str, float]) -> None: ...

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
    with TunerSearch(TunerFolder(str(run), 0, ExitStack()), None, recorder).around_script():
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


def test_a_tuner_of_several_ends_with_its_search(package: Path) -> None:
    with TunerSearch(TunerFolder(str(package), 1, ExitStack()), identity(1), Recorder()).around_script():
        assert os.environ[TUNER_ID] == "tuner1"
        tuner = importlib.import_module("keras_tuner").Tuner(None)
        with pytest.raises(SearchEnded):
            tuner.search()
    assert tuner.searched
    assert TUNER_ID not in os.environ


def test_a_search_on_nodes_that_train_together_is_refused(package: Path) -> None:
    with TunerSearch(TunerFolder(str(package), 0, ExitStack()), None, Recorder(), nodes=2).around_script():
        tuner = importlib.import_module("keras_tuner").Tuner(None)
        with pytest.raises(InvalidProgram, match="tuner: KerasTuner"):
            tuner.search()

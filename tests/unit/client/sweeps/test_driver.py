"""A sweep on this machine: its trials, its folder, and its places on GPUs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mptraining.local.runner import visible_gpus
from mptraining.sweeps.driver import gpus_of_slots
from mptraining.sweeps.folder import SweepFolder
from mptraining.sweeps.start import open_sweep
from mptraining_api.problems import InvalidSpec, Problem, ResumeRefused
from mptraining_api.sweep.spec import Parameter
from mptraining_api.sweep.status import TrialState
from tests.testbed.sweep_files import run, view_of

SweepFile = Callable[..., Path]


pytestmark = pytest.mark.usefixtures("here")


def test_a_sweep_runs_its_trials_and_finds_the_best(
    sweep_file: SweepFile, trainer: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, view = run(sweep_file(trials=5), trainer)
    assert code == 0
    assert [trial.state for trial in view.trials] == [TrialState.SUCCEEDED] * 5
    assert view.status.best is not None
    assert view.status.best.objective == max(trial.objective or 0.0 for trial in view.trials)
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "flowers: TPE, 5 trials at most, 1 at a time; folder runs/flowers"
    assert [line.split()[:3] for line in out[1:6]] == [["trial", str(number), "succeeded"] for number in range(1, 6)]
    assert out[-1] == "  next    mptj sweep compare runs/flowers   mptj sweep job runs/flowers"
    stored = SweepFolder(Path("runs/flowers")).read()
    assert stored is not None
    assert stored[1] == view.status
    assert Path("runs/flowers/trials/5/result.json").is_file()


def test_a_second_driver_of_the_same_folder_is_refused(sweep_file: SweepFile, trainer: tuple[str, str]) -> None:
    path, folder = sweep_file(), SweepFolder(Path("runs/flowers"))
    assert not folder.is_driven()
    with folder.lock():
        assert folder.is_driven()
        with pytest.raises(InvalidSpec, match="another process runs the sweep here"):
            run(path, trainer)
    assert not folder.is_driven()


def test_another_search_in_the_same_folder_is_refused(sweep_file: SweepFile, trainer: tuple[str, str]) -> None:
    run(sweep_file(trials=1), trainer)
    with pytest.raises(ResumeRefused, match=r"another spec\.parameters"):
        open_sweep(sweep_file(trials=1, parameter="logUniform: {low: 1e-3, high: 1e-1}"))


def test_parallel_trials_do_not_share_a_gpu() -> None:
    spec = view_of([]).sweep.spec
    job = spec.job | {"accelerator": {"type": "t4", "countPerWorker": 2}}
    on_gpus = spec.model_copy(update={"job": job})
    assert gpus_of_slots(on_gpus, 2, list("0123")) == [{"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2,3"}]
    assert gpus_of_slots(on_gpus, 1, list("0123")) == [{}], "one trial has the whole machine"
    assert gpus_of_slots(spec, 3, list("0123")) == [{}, {}, {}], "a CPU job"
    with pytest.raises(InvalidSpec, match="each trial needs 2 GPUs, and this machine has 4; expected at most 2"):
        gpus_of_slots(on_gpus, 3, list("0123"))
    # By the largest trial, of the GPUs of the user.
    searched = Parameter.parse({"path": "accelerator.countPerWorker", "values": [1, 2]})
    job = spec.job | {"accelerator": {"type": "t4"}}
    gpus = visible_gpus({"CUDA_VISIBLE_DEVICES": "4,5,6,7,-1,0"})
    found = gpus_of_slots(spec.model_copy(update={"job": job, "parameters": [searched]}), 2, gpus)
    assert found == [{"CUDA_VISIBLE_DEVICES": "4,5"}, {"CUDA_VISIBLE_DEVICES": "6,7"}]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []


def test_a_sweep_without_optuna_is_refused_before_its_first_line(
    sweep_file: SweepFile, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(Problem, match="the package optuna is not installed"):
        run(sweep_file(trials=5), ("no-trainer", "train"))
    assert capsys.readouterr().out == ""

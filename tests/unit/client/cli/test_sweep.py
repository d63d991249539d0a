"""The commands of a sweep: what they print, what they write, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mptraining.job_file.checked_job import check_job_file
from mptraining.sweeps.best_job import SWEEP_FILE
from mptraining.sweeps.folder import SweepFolder
from mptraining.sweeps.start import open_sweep
from mptraining.sweeps.view import SweepView
from mptraining_api.sweep.status import SweepStatus
from tests.testbed.sweep_files import SWEEP, trial, view_of

Mptj = Callable[..., Any]

ENDED = (
    '{"type": "Finished", "status": "True", "reason": "MaxTrials", "message": "20 trials", '
    '"lastTransitionTime": "2026-01-01T00:00:00Z"}'
)


@pytest.fixture
def sweep_file(job_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    path = job_file().parent / "sweep.yaml"
    text = SWEEP.replace("TRIALS", "20").replace("ALGORITHM", "TPE")
    path.write_text(text.replace("PARAMETER", "logUniform: {low: 1e-4, high: 1e-1}"))
    monkeypatch.chdir(path.parent)
    return path


@pytest.fixture
def folder(sweep_file: Path) -> Path:
    """A sweep's folder with ten trials, of which the fourth is the best."""
    found = sweep_file.parent / "runs" / "flowers"
    trials = [trial(number, 0.001 * number, 1 - abs(number - 4) / 10) for number in range(1, 11)]
    view = view_of(trials)
    job = view.sweep.spec.job | {"output": {"uri": str(found)}}
    metadata = view.sweep.metadata.model_copy(update={"annotations": {SWEEP_FILE: str(sweep_file)}})
    spec = view.sweep.spec.model_copy(update={"job": job})
    SweepFolder(found).write(view.sweep.model_copy(update={"spec": spec, "metadata": metadata}), view.status)
    return found


@pytest.mark.parametrize("named", ["runs/flowers", "sweep.yaml", "runs/flowers/sweep.json"])
def test_a_sweep_is_found_by_its_folder_and_its_file(named: str, folder: Path, mptj: Mptj) -> None:
    out = mptj("sweep", "status", named).stdout
    assert "10 of 20 trials" in out
    assert "to continue it: mptj run sweep.yaml\n" in out


def test_a_sweep_that_ran_with_parallel_trials_has_ended_by_its_file_too(sweep_file: Path, mptj: Mptj) -> None:
    ended = SweepStatus.read('{"phase": "Succeeded", "conditions": [' + ENDED + "]}")
    opened = open_sweep(sweep_file, parallel=3)
    opened.folder.write(opened.sweep, ended)
    out = mptj("sweep", "status", "sweep.yaml").stdout
    assert out.startswith("flowers: Succeeded  (")
    assert "MaxTrials: 20 trials" in out
    assert "continue" not in out
    assert open_sweep(sweep_file).status == ended, "another --parallel allows no more trials"


def test_the_comparison_has_the_best_trials_first_and_the_importance(folder: Path, mptj: Mptj) -> None:
    out = mptj("sweep", "compare", str(folder), "--most", "2").stdout.splitlines()
    assert out[1].split() == ["trial", "state", "val_accuracy", "learning_rate", "batchSize.global", "time"]
    assert [line.split()[0] for line in out[2:4]] == ["4", "3"]
    assert out[4] == "and 8 more: --most 10"
    shares = [line.split() for line in out[6:]]
    # Only the learning rate varies.
    assert shares[0][0] == "training.optimizer.config.learning_rate"
    assert int(shares[0][1].rstrip("%")) > 90


def test_the_job_of_a_trial_is_one_that_check_accepts(folder: Path, mptj: Mptj) -> None:
    written = mptj("sweep", "job", str(folder))
    assert (written.stdout.splitlines()[0], written.stderr) == ("wrote flowers-best.yaml", "")
    assert Path("flowers-best.yaml").read_text().startswith("# Trial 4 of the sweep flowers: val_accuracy 1.\n")
    job = check_job_file(Path("flowers-best.yaml")).written.to_document()
    assert (job["metadata"]["name"], job["spec"]["output"]["uri"]) == ("flowers-best", "runs/flowers/best")
    assert job["spec"]["training"]["optimizer"]["config"]["learning_rate"] == 0.004
    assert job["spec"]["training"]["epochs"] == 4
    refused = mptj("sweep", "job", str(folder))
    assert (refused.returncode, "exists" in refused.stderr) == (2, True)
    assert mptj("sweep", "job", str(folder), "--trial", "9", "--to", "ninth.yaml").returncode == 0
    ninth = check_job_file(Path("ninth.yaml")).written.to_document()
    assert (ninth["metadata"]["name"], ninth["spec"]["output"]["uri"]) == ("flowers-trial-9", "runs/flowers/trial-9")


@pytest.mark.parametrize("form", [(), ("-o", "json"), ("-o", "yaml")])
def test_check_shows_the_search_whatever_is_in_the_run_folder(
    folder: Path, sweep_file: Path, mptj: Mptj, form: tuple[str, ...]
) -> None:
    # Another search, whose folder `mptj run` refuses.
    stored = folder / "sweep.json"
    stored.write_text(stored.read_text().replace('"val_accuracy"', '"val_loss"'))
    checked = mptj("check", "sweep.yaml", *form)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert ("MPTrainingSweep" if form else "at most 20") in checked.stdout
    # A field that the job lacks is searched.
    text = sweep_file.read_text().replace("{application: {name: mlp, classes: 3}}", "{application: {classes: 3}}")
    more = "    - {path: program.application.name, values: [mlp]}\n  trials:"
    sweep_file.write_text(text.replace("  trials:", more))
    assert "program.application.name" in mptj("check", "sweep.yaml", *form).stdout


def test_every_mistake_is_reported_with_its_line(sweep_file: Path, mptj: Mptj) -> None:
    text = sweep_file.read_text()
    for right, wrong in (
        ("metric: val_accuracy", "metric: val_auc"),
        ("training.optimizer.config.learning_rate", "training.optimzer.config.learning_rate"),
        ("values: [32, 64]", "values: []"),
        ("records/val-*", "nowhere/val-*"),
    ):
        text = text.replace(right, wrong)
    sweep_file.write_text(text)
    *found, last = mptj("run", "sweep.yaml").stderr.splitlines()
    assert [each.split(": ")[:2] for each in found] == [
        ["sweep.yaml:5", "spec.objective.metric"],
        ["sweep.yaml:8", "spec.parameters[0].path"],
        ["sweep.yaml:9", "spec.parameters[1].values"],
        ["sweep.yaml:14", "spec.job.data.validation[0]"],
    ]
    assert last == "mptj: 4 mistakes; nothing was started"
    assert not Path("runs").exists()


def test_a_folder_that_is_no_sweep(folder: Path, mptj: Mptj) -> None:
    (folder / "sweep.json").write_text('{"kind": "MPTrainingSweep", "spec": 7}')
    for named, said in (
        ("./records", "./records: holds no sweep.json"),
        ("runs/none", "runs/none: no such folder"),
        (str(folder), "sweep.json: is no sweep. Restore it"),
    ):
        refused = mptj("sweep", "status", named)
        assert (refused.returncode, said in refused.stderr) == (2, True)


def test_the_stored_sweep_is_that_of_a_cluster(folder: Path) -> None:
    from mptraining.sweeps.cluster import view

    document = json.loads((folder / "sweep.json").read_text())
    document["metadata"] |= {"namespace": "team", "uid": "1", "resourceVersion": "5"}
    stored = SweepFolder(folder).read()
    assert stored is not None
    assert view(document, "here").status == SweepView(*stored, "").status

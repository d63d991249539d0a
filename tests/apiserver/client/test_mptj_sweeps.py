"""Sweeps by `mptj` against the real API server; the test writes the status, as the operator does."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import mptraining
from tests.testbed import ControlPlane
from tests.testbed.mptj import Ended
from tests.testbed.sweep_files import SWEEP, trial

Mptj = Callable[..., Ended]


@pytest.fixture
def mptj(control_plane: ControlPlane, namespace: str, mptj: Mptj, use: Any) -> Mptj:
    """Runs a command in an empty namespace without an operator."""
    use(control_plane, namespace)
    return mptj


@pytest.fixture
def sweep_file(tmp_path: Path) -> str:
    text = SWEEP.replace("TRIALS", "20").replace("ALGORITHM", "TPE")
    text = text.replace("PARAMETER", "logUniform: {low: 1e-4, high: 1e-1}")
    text = text.replace("records/", "gs://bucket/")
    (tmp_path / "sweep.yaml").write_text(text)
    return "sweep.yaml"


def write_status(control_plane: ControlPlane, namespace: str, *, ended: bool) -> None:
    """Write a status of two trials, as the operator would."""
    trials = [trial(1, 0.001, 0.5), trial(2, 0.01, 0.75)]
    status: dict[str, Any] = {
        "phase": "Succeeded" if ended else "Running",
        "startTime": "2026-01-01T00:00:00Z",
        "succeeded": 2,
        "trials": trials,
        "best": {key: trials[1][key] for key in ("number", "objective", "parameters")},
    }
    if ended:
        finished = {"type": "Finished", "status": "True", "reason": "TargetReached", "message": "trial 2 reached 0.75"}
        status["conditions"] = [finished | {"lastTransitionTime": "2026-01-01T00:03:00Z"}]
    path = f"/apis/mptraining.dev/v1alpha1/namespaces/{namespace}/mptrainingsweeps/flowers/status"
    control_plane.rest.patch(path, {"status": status})


def test_a_sweep_from_its_file_to_the_job_of_its_best_trial(
    mptj: Mptj, sweep_file: str, control_plane: ControlPlane, namespace: str
) -> None:
    assert json.loads(mptj("submit", sweep_file, "--dry-run", "-o", "json").stdout)["kind"] == "MPTrainingSweep"
    assert mptj("submit", sweep_file).stdout.startswith(f"submitted: sweep flowers (namespace {namespace})")
    assert mptj("submit", sweep_file).stderr.startswith("mptj: flowers: a sweep of this name exists in namespace")
    assert mptj("list").stdout.splitlines()[1].split()[:4] == ["flowers", "Pending", "0/20", "0"]
    assert mptj("list", "-o", "name").stdout == "mptrainingsweep.mptraining.dev/flowers\n"
    assert "no trial has ended yet" in mptj("sweep", "status", "flowers").stdout
    assert mptj("sweep", "job", "flowers").stderr.startswith("mptj: flowers: no trial has ended yet")

    write_status(control_plane, namespace, ended=False)
    best = "best        val_accuracy 0.75 (trial 2: learning_rate 0.01, batchSize.global 32)"
    assert best in mptj("status", "flowers").stdout
    assert json.loads(mptj("sweep", "status", "flowers", "-o", "json").stdout)["best"]["number"] == 2
    applied = mptj("sweep", "job", "mpts/flowers", "--to", "best.yaml")
    assert (applied.returncode, applied.stderr) == (0, "")
    assert "learning_rate: 0.01" in Path("best.yaml").read_text()
    assert mptj("check", "best.yaml").returncode == 0

    assert mptj("suspend", "flowers").returncode == 0
    path = f"/apis/mptraining.dev/v1alpha1/namespaces/{namespace}/mptrainingsweeps/flowers"
    assert control_plane.rest.get(path)["spec"]["runPolicy"] == {"suspend": True}
    assert mptj("resume", "mpts/flowers").returncode == 0

    later = threading.Timer(1.0, lambda: write_status(control_plane, namespace, ended=True))
    later.start()
    ended = mptj("wait", "flowers")
    later.join()
    assert ended.returncode == 0
    lines = ended.stdout.splitlines()
    assert [line.split()[:3] for line in lines[:2]] == [["trial", "1", "succeeded"], ["trial", "2", "succeeded"]]
    assert lines[-1] == "  ended       TargetReached: trial 2 reached 0.75"
    assert "the sweep has ended (Succeeded)" in mptj("suspend", "flowers").stderr
    assert mptj("cancel", "flowers").stdout == "cancelled: sweep flowers, with the jobs of its trials\n"
    assert mptj("status", "flowers").stderr.startswith("mptj: flowers: no job of this name")


def test_waiting_for_a_sweep_has_a_time_limit(mptj: Mptj, sweep_file: str) -> None:
    mptj("submit", sweep_file)
    late = mptj("wait", "mpts/flowers", "--timeout", "0.1")
    refused = mptj("wait", "mpts/flowers", "--model", "m")
    assert (refused.returncode, refused.stderr) == (2, "mptj: --model: has no meaning for a sweep. Leave it out.\n")
    assert (late.returncode, "still Pending after 0.1 s" in late.stderr) == (124, True)
    assert mptj("sweep", "status", "mpts/roses").stderr.startswith("mptj: roses: no sweep of this name in namespace")


def test_a_sweep_from_python(mptj: Mptj, sweep_file: str, control_plane: ControlPlane, namespace: str) -> None:
    del mptj
    with pytest.raises(TypeError, match="submit_sweep\\(\\) takes no argument 'trial'"):
        mptraining.submit_sweep(sweep_file, trial=3)
    job = yaml.safe_load(Path(sweep_file).read_text())["spec"]["job"]
    rates = {"training.optimizer.config.learning_rate": [1e-3, 1e-2], "training.batchSize.global": [32]}
    sent = mptraining.submit_sweep(
        {"metadata": {"name": "flowers"}, "spec": job}, parameters=rates, objective="val_accuracy", name="flowers",
        parallel=2, output="gs://bucket/search",
    )  # fmt: skip
    assert sent == mptraining.attach_sweep("mpts/flowers")
    spec = sent.document()["spec"]
    assert (spec["trials"]["parallel"], spec["job"]["output"]) == (2, {"uri": "gs://bucket/search"})
    write_status(control_plane, namespace, ended=True)
    found = sent.result(60)
    assert (found.best.number, [each.objective for each in found.trials]) == (2, [0.75, 0.5])

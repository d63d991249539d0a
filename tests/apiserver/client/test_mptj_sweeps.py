"""Sweeps by `mptj` against the real API server; the test writes the status, as the operator does."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mptraining.cli.main import main
from tests.testbed import ControlPlane
from tests.testbed.sweep_files import SWEEP, trial

Mptj = Callable[..., tuple[int, str, str]]


@pytest.fixture
def mptj(
    control_plane: ControlPlane,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Mptj:
    """Runs a command in an empty namespace without an operator; returns exit code, standard output and error."""
    kubeconfig = control_plane.kubeconfig("mptj-sweeps", control_plane.rest.token, namespace=namespace)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main(list(arguments))
        printed = capsys.readouterr()
        return int(left.value.code or 0), printed.out, printed.err

    return call


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
    code, out, _ = mptj("submit", sweep_file, "--dry-run", "-o", "json")
    assert code == 0
    assert json.loads(out)["kind"] == "MPTrainingSweep"
    code, out, _ = mptj("submit", sweep_file)
    assert code == 0
    assert out.startswith(f"submitted: sweep flowers (namespace {namespace})")
    assert mptj("submit", sweep_file)[2].startswith("mptj: flowers: a sweep of this name exists in namespace")
    _, out, _ = mptj("list")
    assert out.splitlines()[1].split()[:4] == ["flowers", "Pending", "0/20", "0"]
    assert mptj("list", "-o", "name")[1] == "mptrainingsweep.mptraining.dev/flowers\n"
    _, out, _ = mptj("sweep", "status", "flowers")
    assert "no trial has ended yet" in out
    assert mptj("sweep", "best", "flowers")[2].startswith("mptj: flowers: no trial has ended yet")

    write_status(control_plane, namespace, ended=False)
    _, out, _ = mptj("status", "flowers")
    assert "best        val_accuracy 0.75 (trial 2: learning_rate 0.01, batchSize.global 32)" in out
    _, out, _ = mptj("sweep", "best", "flowers", "--json")
    assert json.loads(out)["number"] == 2
    code, out, err = mptj("sweep", "apply", "mpts/flowers", "--to", "best.yaml")
    assert (code, err) == (0, "")
    assert "learning_rate: 0.01" in Path("best.yaml").read_text()
    assert mptj("check", "best.yaml")[0] == 0

    assert mptj("suspend", "flowers")[0] == 0
    path = f"/apis/mptraining.dev/v1alpha1/namespaces/{namespace}/mptrainingsweeps/flowers"
    assert control_plane.rest.get(path)["spec"]["runPolicy"] == {"suspend": True}
    assert mptj("resume", "mpts/flowers")[0] == 0

    later = threading.Timer(1.0, lambda: write_status(control_plane, namespace, ended=True))
    later.start()
    code, out, _ = mptj("wait", "flowers")
    later.join()
    assert code == 0
    lines = out.splitlines()
    assert [line.split()[:3] for line in lines[:2]] == [["trial", "1", "succeeded"], ["trial", "2", "succeeded"]]
    assert lines[-1] == "  ended       TargetReached: trial 2 reached 0.75"
    assert "the sweep has ended (Succeeded)" in mptj("suspend", "flowers")[2]
    assert mptj("cancel", "flowers")[1] == "cancelled: sweep flowers, with the jobs of its trials\n"
    assert mptj("status", "flowers")[2].startswith("mptj: flowers: no job of this name")


def test_waiting_for_a_sweep_has_a_time_limit(mptj: Mptj, sweep_file: str) -> None:
    mptj("submit", sweep_file)
    code, _, err = mptj("wait", "mpts/flowers", "--timeout", "0.1")
    assert code == 124
    assert "still Pending after 0.1 s" in err
    assert mptj("sweep", "status", "mpts/roses")[2].startswith("mptj: roses: no sweep of this name in namespace")

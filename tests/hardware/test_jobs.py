"""The jobs of the measurements, here and on a cluster."""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hardware import cluster, measure
from hardware.cells import Turn, turns
from hardware.jobs import job, local_accelerator, steps
from hardware.machine import Machine, catalogue_name
from mptraining.cluster.errors import _refused
from mptraining_api.accelerators import lookup
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import MPTrainingJob
from tests.hardware.runs import CPU, GPU, TPU, cell, results


@pytest.mark.parametrize("machine", [CPU, GPU, TPU], ids=lambda machine: str(machine.kind))
def test_every_cell_is_a_job_with_the_cells_policy_and_strategy(machine: Machine) -> None:
    found = results(machine)
    for one in {turn.cell for turn in turns(machine, found.scale) if not turn.cell.needs}:
        written = job(
            one,
            found.scale,
            local_accelerator(machine, one.devices),
            train="records/train-*",
            output="run",
            total_steps=steps(one, found.scale),
        )
        resolved = resolve(MPTrainingJob.parse(written), ClusterSettings())
        assert resolved.precision.policy == one.policy.replace("tf32", "float32")
        assert resolved.strategy == ("TPU" if machine.kind == "tpu" else "Mirrored")
        assert resolved.replicas_per_process == one.devices
        assert resolved.training is not None
        assert resolved.training.deterministic == one.deterministic


def test_gpus_have_the_catalogues_name_or_that_of_a_similar_one() -> None:
    assert catalogue_name("Tesla V100-SXM2-16GB", 7.0) == "nvidia-tesla-v100"
    assert catalogue_name("NVIDIA A100-SXM4-40GB", 8.0) == "nvidia-tesla-a100"
    assert catalogue_name("NVIDIA GeForce RTX 3090", 8.6) == "nvidia-l4"
    assert 8 in lookup(catalogue_name("NVIDIA GeForce RTX 3090", 8.6)).counts


@pytest.mark.parametrize("accelerator", ["nvidia-tesla-t4", "nvidia-tesla-a100", "tpu-v5-lite-podslice"])
def test_the_jobs_of_a_cluster_resolve_and_have_names_of_their_own(accelerator: str) -> None:
    found = cluster.documents(accelerator, "gs://bucket", count=1, minutes=60, account="trainer")
    for one in found:
        resolved = resolve(MPTrainingJob.parse(one), ClusterSettings())
        assert resolved.output == f"gs://bucket/runs/{resolved.name}"
    names = {one["metadata"]["name"] for one in found}
    # Two policies of five models, where each measurement needs the device for itself.
    assert len(names) == len(found) == (10 if "tpu" in accelerator else 1)


def test_the_archive_has_the_program_and_is_the_same_every_time() -> None:
    packed = cluster.archive()
    assert packed == cluster.archive()
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        assert {cluster.SCRIPT, "hardware/__main__.py", "hardware/models.py"} <= set(files.getnames())


def test_dry_run_prints_the_jobs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "--bucket", "gs://bucket/", "--accelerator", "t4", "--dry-run"])
    cluster.main()
    assert "uri: gs://bucket/runs/hardware-nvidia-tesla-t4" in capsys.readouterr().out


def test_a_second_run_continues_with_the_jobs_that_exist(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Costs come first, and a job without results is one line."""
    page = tmp_path / "hardware.md"
    asked = ["x", "--bucket", str(tmp_path), "--accelerator", "t4", "--page", str(page)]
    monkeypatch.setattr(sys, "argv", asked)
    calls = []

    def run(command: list[str], **_: Any) -> Any:
        calls.append(command[3])
        job: Any = SimpleNamespace(name="hardware-nvidia-tesla-t4", namespace="training")
        error = _refused(job, "AlreadyExists", "", "job") if command[3] == "submit" else ""
        return SimpleNamespace(returncode=1 if error else 0, stdout="", stderr=str(error))

    monkeypatch.setattr(cluster.subprocess, "run", run)
    with pytest.raises(SystemExit, match=r"^[^\n]*hardware.json: missing: job hardware-nvidia-tesla-t4 [^\n]*$"):
        cluster.main()
    assert calls == ["submit", "wait"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("1 job of at most 2 hours, one machine each: at most 0.58 US dollars")
    assert lines[1].startswith("exists   hardware-nvidia-tesla-t4")
    assert not page.exists()


def test_costs_of_an_accelerator_without_a_recorded_price_say_so() -> None:
    assert "no list price of nvidia-l4" in cluster.costs("nvidia-l4", 1, 1)
    assert cluster.costs("tpu-v5-lite-podslice", 10, 1).startswith("10 jobs of at most 2 hours")


@pytest.mark.parametrize(
    ("message", "outcome"),
    [
        ("memory: OOM when allocating tensor with shape[128,64]", "out of memory"),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate", "out of memory"),
        ("out of memory: the kernel ended the process with SIGKILL", "out of memory"),
        ("spec.program: the model has no loss", "failed"),
    ],
)
def test_a_failure_is_recorded_with_its_message(
    message: str, outcome: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise measure.ChildFailed(message)

    monkeypatch.setattr(measure, "_child", fail)
    found = results(CPU)
    one = measure.measure(Turn(cell(found, "policies", model="mlp"), 0), found, tmp_path)
    assert (one.outcome, one.message) == (outcome, message)


def test_the_second_half_continues_in_the_folder_of_the_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    legs = []

    def child(request: dict[str, Any], *_: Any, keep: bool = False) -> dict[str, Any]:
        legs.append((request["steps"], keep))
        return {"weights": "w"}

    monkeypatch.setattr(measure, "_child", child)
    found = results(CPU)
    one = measure.measure(Turn(cell(found, "resume"), 0), found, tmp_path)
    assert legs == [(24, False), (12, True), (24, False)]
    assert one.values["straight_weights"] == "w"

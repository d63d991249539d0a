"""The jobs of the measurements, here and on a cluster."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hardware import child, cluster, measure
from hardware.cells import Turn, turns
from hardware.jobs import job, local_accelerator, steps
from hardware.machine import Machine, catalogue_name
from mptraining.cluster.errors import _refused
from mptraining_api.accelerators import lookup
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import MPTrainingJob
from tests.hardware.runs import CPU, GPU, TPU, cell, results

MACHINES = [
    CPU,
    GPU,
    TPU,
    replace(TPU, count=8),
    *(
        replace(
            GPU, device=name, accelerator=catalogue_name(name, capability, count), count=count, capability=capability
        )
        for name, capability, count in [
            ("Tesla P100-PCIE-16GB", 6.0, 8),
            ("Tesla T4", 7.5, 8),
            ("NVIDIA A100-SXM4-40GB", 8.0, 16),
            ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 8.0, 1),
            ("NVIDIA H200", 9.0, 1),
            ("NVIDIA B200", 10.0, 8),
            ("NVIDIA GeForce RTX 5090", 12.0, 2),
            ("GPU", None, 3),
        ]
    ),
]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda one: f"{one.count} x {one.device}")
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
        # A job on a TPU takes all chips of the machine.
        assert resolved.replicas_per_process == (machine.count if machine.kind == "tpu" else one.devices)
        assert resolved.training is not None
        assert resolved.training.deterministic == one.deterministic


def test_gpus_have_the_catalogues_name_or_that_of_a_similar_one() -> None:
    assert catalogue_name("Tesla V100-SXM2-16GB", 7.0, 8) == "nvidia-tesla-v100"
    assert catalogue_name("NVIDIA A100-SXM4-40GB", 8.0, 1) == "nvidia-tesla-a100"
    assert catalogue_name("NVIDIA GeForce RTX 3090", 8.6, 8) == "nvidia-l4"
    # Google's machines with T4s have at most 4, those with H200s 8.
    assert catalogue_name("Tesla T4", 7.5, 4) == "nvidia-tesla-t4"
    assert 8 in lookup(catalogue_name("Tesla T4", 7.5, 8)).counts
    assert 1 in lookup(catalogue_name("NVIDIA H200", 9.0, 1)).counts


def test_a_number_of_chips_that_no_machine_has_is_named() -> None:
    with pytest.raises(ValueError, match="lists 3 TPU chips: expected 1, 4 or 8"):
        local_accelerator(replace(TPU, count=3), 1)


@pytest.mark.parametrize("accelerator", ["nvidia-tesla-t4", "nvidia-tesla-a100", "tpu-v5-lite-podslice"])
def test_the_jobs_of_a_cluster_resolve_and_have_names_of_their_own(accelerator: str) -> None:
    found = cluster.documents(accelerator, "gs://bucket", count=1, minutes=60, account="trainer")
    for one in found:
        resolved = resolve(MPTrainingJob.parse(one), ClusterSettings())
        assert resolved.output == f"gs://bucket/runs/{resolved.name}"
    names = {one["metadata"]["name"] for one in found}
    # Two policies of five models, the goal's three times, where each measurement needs the device for itself.
    assert len(names) == len(found) == (14 if "tpu" in accelerator else 1)


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
        ("exit code -6: failed call to cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
        ("exit code 1: CUDNN_STATUS_ALLOC_FAILED", "out of memory"),
        ("out of memory: the kernel ended the process with SIGKILL", "out of memory"),
        ("spec.program: the model has no loss", "failed"),
        ("spec.accelerator: promised a GPU with more memory: found none", "failed"),
    ],
)
def test_a_failure_is_recorded_with_its_message(message: str, outcome: str, tmp_path: Path) -> None:
    class Failing(measure.Worker):
        def ask(self, *_: Any, **__: Any) -> Any:
            raise measure.ChildFailed(message)

    found = results(CPU)
    one = measure.measure(Turn(cell(found, "policies", model="mlp"), 0), found, tmp_path, Failing())
    assert (one.outcome, one.message) == (outcome, message)


def test_the_beginning_of_a_long_message_is_kept(tmp_path: Path) -> None:
    """XLA appends a table of buffers; the field at the beginning shows that memory ran out."""
    (tmp_path / "events").mkdir()
    event = {"message": "memory: cannot allocate" + 99 * " buffer", "exitCode": 1}
    (tmp_path / "events" / "0.jsonl").write_text(json.dumps(event) + "\n")
    assert measure.ran_out_of_memory(child.failure(tmp_path, "ProgramFailed"))


def test_the_second_half_continues_in_the_folder_of_the_first(tmp_path: Path) -> None:
    legs = []

    class Recording(measure.Worker):
        def ask(self, request: dict[str, Any], *_: Any, keep: bool = False, **__: Any) -> dict[str, Any]:
            legs.append((request["steps"], keep))
            return {"weights": "w"}

    found = results(CPU)
    one = measure.measure(Turn(cell(found, "resume"), 0), found, tmp_path, Recording())
    assert legs == [(24, False), (12, True), (24, False)]
    assert one.values["straight_weights"] == "w"


# Answers with its process id and the number of its request; a request may ask it to fail, to die or to hang.
FAKE = """
import json, os, sys, time
for number, line in enumerate(sys.stdin):
    asked = json.loads(line)
    if asked.get("only_first") and number:
        print(json.dumps({"failed": "memory: full"}), flush=True)
        continue
    if "kill" in asked:
        os.kill(os.getpid(), asked["kill"])
    if asked.get("exit"):
        print("no NCCL", file=sys.stderr)
        sys.exit(3)
    time.sleep(asked.get("sleep", 0))
    print(json.dumps({"pid": os.getpid(), "number": number}), flush=True)
"""


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[measure.Worker]:
    popen = subprocess.Popen

    def start(_: Any, **options: Any) -> Any:
        return popen([sys.executable, "-c", FAKE], **options)

    monkeypatch.setattr(measure.subprocess, "Popen", start)
    with measure.Worker() as one:
        yield one


def later(seconds: float = 60.0) -> float:
    return time.monotonic() + seconds


def test_only_requests_of_one_kind_share_a_process(worker: measure.Worker, tmp_path: Path) -> None:
    answers = [worker.ask({}, tmp_path, later(), shared=shared) for shared in ("a", "a", "b", None, None, "a")]
    assert [one["number"] for one in answers] == [0, 1, 0, 0, 0, 0]
    assert len({one["pid"] for one in answers}) == 5


def test_one_process_at_a_time(worker: measure.Worker, tmp_path: Path) -> None:
    first = worker.ask({}, tmp_path, later(), shared="a")["pid"]
    assert Path(f"/proc/{first}").exists()
    worker.ask({}, tmp_path, later())
    assert not Path(f"/proc/{first}").exists()


def test_what_fails_in_a_used_process_is_tried_in_a_new_one(worker: measure.Worker, tmp_path: Path) -> None:
    first = worker.ask({}, tmp_path, later(), shared="a")
    second = worker.ask({"only_first": True}, tmp_path, later(), shared="a")
    assert (second["number"], second["pid"] != first["pid"]) == (0, True)
    worker.ask({}, tmp_path, later(), shared="a")


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"exit": True}, "^exit code 3: no NCCL$"),
        ({"kill": 9}, "^out of memory: the kernel ended"),
        ({"sleep": 60}, "^it took several times longer"),
    ],
)
def test_a_process_that_ends_or_hangs_is_a_failure(
    worker: measure.Worker, request_: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    for shared in (None, "a"):
        with pytest.raises(measure.ChildFailed, match=message):
            worker.ask(request_, tmp_path, later(0.5 if "sleep" in request_ else 60), shared=shared, keep=True)
        assert not (tmp_path / "run").exists()
    assert worker.ask({}, tmp_path, later())["number"] == 0

"""The command: it measures within its time, keeps results, continues, and refuses another machine's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hardware import __main__ as command
from hardware.cells import Turn
from hardware.results import Results, Round, load, save
from tests.hardware.runs import CPU, GPU, cell, measured, results


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A CPU on which each measurement takes 10 s; returns the keys in their order."""
    keys: list[str] = []

    def measured(turn: Turn, *_: Any) -> Round:
        keys.append(turn.cell.key)
        values: dict[str, Any] = {"examples_per_second": 5.0, "weights": "w", "straight_weights": "w"}
        values |= {"skipped_steps": 9, "loss_scale": 64.0, "keras_skipped_steps": 9, "keras_loss_scale": 64.0}
        return Round(turn.cell.key, turn.round, "measured", 10.0, values=values)

    monkeypatch.setattr(command, "measure", measured)
    monkeypatch.setattr(command, "_machine", lambda: CPU)
    # The test runner's own handler stays.
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    return keys


def call(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> Results:
    places = ["--folder", str(folder), "--page", str(folder / "hardware.md")]
    monkeypatch.setattr("sys.argv", ["hardware", *places, *arguments])
    command.main()
    return load((folder / "results.json").read_text(), "results.json")


def test_a_second_call_with_more_time_continues(
    machine: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert len(call(monkeypatch, tmp_path, "--minutes", "0.5").rounds) == 3
    assert len(call(monkeypatch, tmp_path, "--minutes", "1").rounds) == len(machine) == 6
    # The second run of determinism is the only repetition so early.
    assert len(set(machine)) == 5
    text = (tmp_path / "hardware.md").read_text()
    assert "Measured on a CPU" in text
    assert (tmp_path / "pictures" / "hardware-speed.svg").exists()


def test_a_job_that_was_preempted_continues_from_its_run_folder(
    machine: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    published = str(tmp_path / "run" / "hardware.json")
    (tmp_path / "run").mkdir()
    call(monkeypatch, tmp_path / "first", "--minutes", "0.5", "--publish", published)
    found = call(monkeypatch, tmp_path / "second", "--minutes", "1", "--publish", published)
    assert len(found.rounds) == len(machine) == 6


def test_another_host_of_the_same_gpu_continues_and_each_round_has_its_own(
    machine: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host = replace(GPU, cpu="Xeon 2.30GHz", memory=31 * 10**9, driver="535.1")
    monkeypatch.setattr(command, "_machine", lambda: host)
    call(monkeypatch, tmp_path, "--small", "--minutes", "0.5")
    monkeypatch.setattr(command, "_machine", lambda: replace(host, cpu="Xeon 2.00GHz", driver="550.2"))
    found = call(monkeypatch, tmp_path, "--small", "--minutes", "1.5")
    assert [one.host["cpu"] for one in found.rounds][:: len(found.rounds) - 1] == ["Xeon 2.30GHz", "Xeon 2.00GHz"]
    text = (tmp_path / "hardware.md").read_text()
    assert "Xeon 2.30GHz" in text
    assert "Xeon 2.00GHz" in text


def test_a_job_on_another_device_starts_over(
    machine: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    published = str(tmp_path / "hardware.json")
    save(measured(results(replace(CPU, device="other")), cell(results(CPU), "resume")), Path(published))
    found = call(monkeypatch, tmp_path / "job", "--minutes", "0.5", "--publish", published)
    assert found.machine == CPU
    assert len(found.rounds) == len(machine) == 3


def test_figures_of_two_machines_are_not_mixed(
    machine: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    save(replace(results(CPU), machine=replace(CPU, cores=64)), tmp_path / "results.json")
    with pytest.raises(SystemExit, match="cores: 64 then, 2 now"):
        call(monkeypatch, tmp_path)
    assert machine == []

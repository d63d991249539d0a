"""The row of a run in the board's table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mptraining.board import rows
from mptraining.comparison import compare
from mptraining.runs import load_run
from mptraining.runs.files import LocalFiles
from mptraining.runs.reader import RunReader
from mptraining_api.events import Event, Finished
from mptraining_api.run_folder import events_file

RunIn = Callable[..., Path]
AttemptEvents = Callable[..., list[Event]]


def shown(folder: Path) -> dict[str, Any]:
    reader = RunReader(LocalFiles(str(folder)), folder.name)
    reader.refresh()
    reader.curves()
    return rows.row(reader.facts, 2000.0)


@pytest.mark.parametrize(
    ("result", "state"),
    [
        ({}, "Succeeded"),
        ({"reason": "Diverged", "exit_code": 3, "message": "NaN"}, "Failed"),
        ({"reason": "Preempted", "exit_code": 75, "message": "spot"}, "Stopped"),
        ({"reason": "StoppedByUser", "exit_code": 75, "message": "by Ctrl-C"}, "Stopped"),
        ({"reason": "PeerLost", "exit_code": 76, "message": "worker 1"}, "Stopped"),
    ],
)
def test_the_state_of_a_run_that_has_ended(
    run_in: RunIn, attempt_events: AttemptEvents, result: dict[str, Any], state: str
) -> None:
    folder = run_in(result=result)
    row = shown(folder)
    assert row["state"] == state
    assert str(load_run(str(folder))).startswith(f"flowers: {state}, attempt 1"), "as `mptj status` says"
    assert row["reason"] == (f"{result['reason']}: {result['message']}" if result else "Succeeded")
    assert row["values"]["outcome"] == result.get("reason", "Succeeded")
    assert row["progress"] == {"step": 30, "totalSteps": 30, "percent": 100}
    # A result of an earlier attempt is out of date.
    later = attempt_events(steps=40, first=30, attempt=2, begin=1990.0)
    (folder / events_file(2, "c", 0, 0)).write_text("".join(event.to_json() + "\n" for event in later))
    assert shown(folder)["state"] == "Running"


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        ({"config": {"learning_rate": 0.02, "beta_1": 0.8}}, ("Adam(beta_1=0.8)", 0.02)),
        ({"config": {"learningRate": {"className": "CosineDecay", "config": {}}}}, ("Adam", "CosineDecay")),
        ({}, ("Adam", 0.03)),
    ],
)
def test_rows_have_the_values_of_the_comparison(
    run_in: RunIn, attempt_events: AttemptEvents, optimizer: dict[str, Any], settings: tuple[str, float | str]
) -> None:
    """`mptj compare` reads the same folder its own way."""
    folder = run_in(training={"optimizer": {"className": "Adam"} | optimizer})
    with (folder / events_file(1, "a-b", 0, 0)).open("a") as file:
        for rate, event in zip((0.01, 0.03, 0.02), attempt_events(steps=33)[-3:], strict=True):
            file.write(event.model_copy(update={"learning_rate": rate}).to_json() + "\n")
    row = shown(folder)
    values = row["values"]
    (expected,) = compare([str(folder)]).to_document()["runs"]
    same = {
        "step_seconds": "stepSeconds", "examples_per_second": "examplesPerSecond", "seconds": "totalSeconds",
        "peak_memory_bytes": "peakMemoryBytes", "precision": "policy", "replicas": "replicas", "keras": "keras",
        "val_accuracy": "last:val_accuracy", "global_batch_size": "globalBatchSize", "accelerator": "accelerator",
        "optimizer": "optimizer", "learning_rate": "learningRate", "xla": "jitCompile", "epochs": "epochs",
    }  # fmt: skip
    assert {key: values[ours] for key, ours in same.items()} == {key: expected[key] for key in same}
    columns = {column["key"]: column for column in rows.columns([row])}
    assert columns["last:val_accuracy"]["better"] == columns["best:val_accuracy"]["better"] == "higher"
    assert set(columns) == set(values)
    assert (values["jitCompile"], values["optimizer"], values["learningRate"]) == ("off", *settings)


def test_the_time_of_a_start_that_failed_at_once_is_that_of_its_end(run_in: RunIn) -> None:
    folder = run_in(done=False)
    about: dict[str, Any] = {"attempt": 1, "incarnation": "a-b", "worker": 0, "message": "no data"}
    end = Finished(time=1002.0, reason="InvalidData", exit_code=2, seconds=1.5, **about)
    (folder / events_file(1, "a-b", 0, 0)).write_text(end.to_json() + "\n")
    assert shown(folder)["values"]["totalSeconds"] == load_run(str(folder)).seconds == 1.5

"""A run folder as a value, whole, unfinished or damaged."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from mptraining.runs import history, load_run
from mptraining_api.events import Event, Progress
from mptraining_api.problems import InvalidData, InvalidProgram
from mptraining_api.run_folder import events_file
from mptraining_storage import storage

RunIn = Callable[..., Path]
AttemptEvents = Callable[..., list[Event]]


def test_a_whole_run(run_in: RunIn) -> None:
    run = load_run(str(run_in(steps=20)))
    assert run.succeeded
    assert run.job
    assert run.job.name == "flowers"
    assert [point.step for point in run.history.points] == list(range(1, 21))
    assert run.metrics == {"loss": 0.5, "val_loss": 0.6, "val_accuracy": 0.8}
    assert run.gaps == ()


def test_a_run_in_a_bucket_is_read_as_one_on_disk(run_in: RunIn, bucket: str) -> None:
    folder = run_in(steps=20)
    for path in (path for path in folder.rglob("*") if path.is_file()):
        storage.write(f"{bucket}/plain/{path.relative_to(folder)}", path.read_bytes())
    run, local = load_run(f"{bucket}/plain/"), load_run(str(folder))
    assert (run.job, run.result, run.history.points) == (local.job, local.result, local.history.points)
    assert run.gaps == ()


def test_an_unfinished_run_is_read_from_its_events(run_in: RunIn) -> None:
    run = load_run(str(run_in(steps=20, done=False)))
    assert run.result is None
    assert run.metrics == {"loss": 1 / 20, "val_loss": 1.1 / 20, "val_accuracy": 0.8}
    assert run.precision == "float32"
    assert run.history.seconds == 20


def test_damage_is_named_and_the_rest_is_shown(run_in: RunIn) -> None:
    folder = run_in(steps=10)
    (folder / "result.json").write_text("{half")
    events = folder / events_file(1, "a-b", 0, 0)
    (folder / events_file(1, "a-b", 1, 0)).write_text(events.read_text())
    events.write_text(events.read_text()[:-40])
    run = load_run(str(folder))
    assert run.gaps == (f"{folder}/result.json cannot be read",)
    assert len(run.history.points) == 9, "without those of worker 1"
    (folder / "job.json").unlink()
    assert f"{folder}/job.json is missing" in load_run(str(folder)).gaps


@pytest.mark.parametrize("name", ["empty", "absent"])
def test_no_run_at_all_is_a_problem_that_names_the_missing_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidData, match=rf"{name}: holds no run: there is no job\.json in it"):
        load_run(str(tmp_path / name))


def test_a_history_is_read_as_keras_is(attempt_events: AttemptEvents) -> None:
    events = [
        event.model_copy(update={"epoch": 1 + (event.step > 5), "gradient_norm": event.step / 10, "loss_scale": 1024.0})
        if isinstance(event, Progress)
        else event
        for event in attempt_events(steps=10)
    ]
    read = history([events])
    # One value per epoch, the last.
    assert read["loss"] == [1 / 5, 1 / 10]
    assert read["val_accuracy"] == [0.8]
    assert read["gradient_norm"] == [0.5, 1.0]
    assert read.series("loss_scale") == [(step, 1024.0) for step in range(1, 11)]
    assert ("loss" in read, "accuracy" in read) == (True, False)
    with pytest.raises(KeyError, match=r"'val_acc' was not recorded. Did you mean 'val_accuracy'\? Recorded: loss,"):
        read["val_acc"]


def test_a_history_is_a_table_for_pandas(attempt_events: AttemptEvents, monkeypatch: pytest.MonkeyPatch) -> None:
    class Frame:
        def __init__(self, rows: list[dict[str, float]], columns: list[str]) -> None:
            self.rows, self.columns = rows, columns

    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=Frame))
    frame = history([attempt_events(steps=10)]).to_pandas()
    assert frame.columns == ["step", "seconds", "epoch", "loss", "val_loss", "val_accuracy"]
    assert frame.rows[2] == {"step": 3, "seconds": 3.0, "epoch": 1, "loss": 1 / 3}
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InvalidProgram, match=r"pandas is not installed here\. pip install pandas; without it: history"):
        history([]).to_pandas()


def test_values_have_one_line(run_in: RunIn) -> None:
    run = load_run(str(run_in(steps=20)))
    end = "Succeeded  step 20/20 (100%)  loss 0.5  val_loss 0.6  val_accuracy 0.8"
    assert repr(run) == f"<Run flowers in {run.folder}: {end}>"
    line = "<History: 20 points to step 20, 1 attempt  loss 0.05  val_loss 0.055  val_accuracy 0.8>"
    assert (repr(run.history), repr(history([]))) == (line, "<History: 0 points, 0 attempts>")


def test_a_run_prints_as_a_job_of_a_cluster_does(run_in: RunIn) -> None:
    run = load_run(str(run_in(steps=20)))
    assert str(run).splitlines() == [
        "flowers: Succeeded, attempt 1",
        "  why         Succeeded",
        "  progress    step 20/20 (100%)  loss 0.5  val_loss 0.6  val_accuracy 0.8",
        "  runs as     Mirrored, float32, 1 worker, 1 replica, global batch size 64",
        "  time        33 s",
        f"  run folder  {run.folder}",
    ]
    cut = load_run(str(run_in("cut", steps=20, done=False)))
    assert str(cut).startswith("flowers: Unfinished, attempt 1\n  why         no worker has reported an end")

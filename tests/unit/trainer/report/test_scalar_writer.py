"""TensorBoard's scalars of a run: of every attempt, beside a program's own callback, and without any effect on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mptraining_api.events import Notice, Progress, Started
from mptraining_api.launch import WorkerIdentity
from mptraining_storage.outbox import Outbox
from mptraining_trainer.report.scalar_writer import ScalarWriter


def identity(attempt: int) -> WorkerIdentity:
    return WorkerIdentity(index=0, hosts=("a:1",), attempt=attempt, incarnation=f"pod-{attempt}")


def events(attempt: int, first: int, last: int, loss: float) -> list[Any]:
    common: dict[str, Any] = {"attempt": attempt, "incarnation": f"pod-{attempt}", "worker": 0}
    begin = 1_700_000_000.0 + 1000 * attempt
    started = Started(
        time=begin, strategy="Mirrored", precision="float32", keras="keras", tensorflow="2", devices=(), workers=1,
        replicas_in_sync=1, first_step=first, total_steps=10, **common,
    )  # fmt: skip
    steps = range(first + 1, last + 1)
    return [
        started,
        *(Progress(time=begin + step, step=step, epoch=1, metrics={"loss": loss}, **common) for step in steps),
    ]


def write(folder: Path, attempt: int, first: int, last: int, loss: float, **options: Any) -> None:
    writer = ScalarWriter(identity(attempt), str(folder), on_failure=pytest.fail, seconds=0.01, outbox=Outbox())
    if options.get("beside"):
        writer.write_beside_callback()
        writer.write_beside_callback()
    for event in events(attempt, first, last, loss):
        writer.on_event(event)
    writer.close(60)


def read(folder: Path) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder))
    reader.Reload()
    return [(scalar.step, round(scalar.value, 3)) for scalar in reader.Scalars("loss")]


def test_two_attempts_are_one_curve(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, 5, 0.5)
    write(tmp_path, 2, 3, 6, 0.25)
    curve = read(tmp_path / "tensorboard" / "train")
    assert curve == [(1, 0.5), (2, 0.5), (3, 0.5), (4, 0.25), (5, 0.25), (6, 0.25)]


def test_beside_a_callback_of_the_program(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, 2, 0.5, beside=True)
    assert read(tmp_path / "tensorboard" / "job" / "train") == [(1, 0.5), (2, 0.5)]
    assert not (tmp_path / "tensorboard" / "train").exists()


def test_a_run_that_never_trains_writes_nothing(tmp_path: Path) -> None:
    """Its folder may be another job's."""
    writer = ScalarWriter(identity(1), str(tmp_path), on_failure=pytest.fail, seconds=0.01, outbox=Outbox())
    writer.on_event(events(1, 0, 0, 0.5)[0])
    writer.on_event(Notice(time=1.0, attempt=1, incarnation="a", worker=0, topic="Any", message="x"))
    writer.close()
    assert list(tmp_path.iterdir()) == []

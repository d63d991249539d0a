"""Every event as text for a person."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mptraining.display.summary import success_lines
from mptraining.display.text import PlainDisplay, duration, event_lines, is_noise, short_time, size
from mptraining_api.events import Event, Finished, Notice, Progress, Recovered, Saved, Started

COMMON: dict[str, Any] = {"time": 0.0, "attempt": 1, "incarnation": "x", "worker": 0}
BEGIN = Started(
    strategy="Mirrored", precision="mixed_bfloat16", keras="Keras3", tensorflow="2.21.0", devices=("cpu:0",),
    workers=1, replicas_in_sync=2, **COMMON,
)  # fmt: skip


def progress(step: int, *, epoch: int = 1, **fields: Any) -> Progress:
    given: dict[str, Any] = {"total_steps": 100, "metrics": {"loss": 0.5}} | COMMON | fields
    return Progress(step=step, epoch=epoch, **given)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (BEGIN, "training starts: Mirrored on 2 replicas; mixed_bfloat16; Keras3, TensorFlow 2.21.0"),
        (
            BEGIN.model_copy(
                update={"first_step": 50, "workers": 2, "parameters": 12345, "train_examples": 1000,
                        "validation_examples": 100, "steps_per_execution": 8, "cache": "Memory"}
            ),
            "resumes from step 50: Mirrored on 2 workers, 2 replicas; mixed_bfloat16; Keras3, "
            "TensorFlow 2.21.0; 12,345 parameters; 1,000 + 100 examples; 8 steps per execution; cache Memory",
        ),
        (progress(10), "step 10/100  epoch 1  loss 0.5"),
        (progress(10, total_steps=None), "step 10  epoch 1  loss 0.5"),
        (
            progress(10, examples_per_second=12345.6, step_seconds=0.00125, loss_scale=32768.0,
                     skipped_steps=2,
                     input_bound_percent=40.0, estimated_remaining_seconds=200.0),
            "step 10/100  epoch 1  loss 0.5  12,346 examples/s  1.25 ms/step  loss scale 32768  2 skipped  "
            "waits for data 40%  3 min 20 s left",
        ),
        (
            progress(10, step_seconds=0.5, input_bytes_per_second=180e6, input_requests=90, input_retries=1),
            "step 10/100  epoch 1  loss 0.5  500 ms/step  reads 180 MB/s  1 retry",
        ),
        (
            Notice(topic="Indexing", message="indexing the records: 1.20 of 5.00 GB, 32 s left", **COMMON),
            "indexing the records: 1.20 of 5.00 GB, 32 s left",
        ),
        (Notice(topic="X", message="take care", level="Warning", **COMMON), "warning: take care"),
        (Notice(topic="X", message="by the way", **COMMON), "note: by the way"),
        (Saved(step=7, uri="x", bytes=1_500_000, seconds=0.25, **COMMON), "saved step 7 (1.5 MB in 0.2 s)"),
        (
            Recovered(from_step=9, to_step=5, precision="float32", message="loss was NaN", **COMMON),
            "recovered: back from step 9 to 5 under float32: loss was NaN",
        ),
    ],
)  # fmt: skip
def test_lines(event: Event, text: str) -> None:
    assert event_lines(event) == [text]


def test_plain_progress_comes_every_ten_seconds_and_at_ends(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    display = PlainDisplay(clock=lambda: now[0])
    events = [
        (0.0, progress(1)), (9.9, progress(2)), (10.0, progress(3)), (11.0, progress(4, metrics={"val_loss": 1.0})),
        (12.0, progress(5)), (13.0, progress(6, epoch=2)), (14.0, progress(7, epoch=2)), (15.0, progress(100, epoch=2)),
    ]  # fmt: skip
    for now[0], event in events:
        display.event(0, event)
    shown = [line.split()[1].partition("/")[0] for line in capsys.readouterr().out.splitlines()]
    assert shown == ["1", "3", "4", "6", "100"]


def test_other_workers_only_warn(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay()
    display.event(1, progress(1))
    display.event(1, Notice(topic="X", message="quiet", **COMMON))
    display.event(1, Notice(topic="X", message="loud", level="Warning", **COMMON))
    display.event(1, Notice(topic="InputBound", message="said by all", level="Warning", **COMMON))
    display.line(1, "stderr", "printed")
    assert capsys.readouterr() == ("[worker 1] warning: loud\n", "[worker 1] printed\n")


@pytest.mark.parametrize(
    ("text", "values", "shown"),
    [
        (duration, (0.0086, 0.84, 9.96, 59.4, 59.6, 200, 3599.7, 7500),
         ["9 ms", "0.8 s", "10 s", "59 s", "1 min 0 s", "3 min 20 s", "1 h 0 min", "2 h 5 min"]),
        (short_time, (82e-6, 0.00125, 0.0321, 3.21), ["82 µs", "1.25 ms", "32.1 ms", "3.21 s"]),
        (size, (512, 1500, 123_456_789, 12.3e9), ["512 B", "1.5 kB", "123 MB", "12.3 GB"]),
    ],
)  # fmt: skip
def test_numbers_for_people(text: Callable[[float], str], values: tuple[float, ...], shown: list[str]) -> None:
    assert list(map(text, values)) == shown


def test_a_cpu_job_hides_that_tensorflow_finds_no_gpu_and_a_gpu_job_shows_it() -> None:
    line = "E0000 00:00:1700000000.000000 7 cuda_platform.cc:52] failed call to cuInit: INTERNAL: (303)"
    assert is_noise("stderr", line, needs_gpu=False)
    assert not is_noise("stderr", line, needs_gpu=True)
    assert not is_noise("stderr", "E0000 failed to allocate memory", needs_gpu=False)


def test_a_prediction_starts_as_one_and_has_no_epoch_and_no_run_to_compare() -> None:
    (line,) = event_lines(BEGIN.model_copy(update={"purpose": "Prediction", "train_examples": 64}))
    assert line.startswith("prediction starts: Mirrored on")
    assert "64 records" in line
    assert event_lines(Progress(step=1, total_steps=1, epoch=0, metrics={}, **COMMON)) == ["step 1/1"]
    done = Finished(reason="Succeeded", exit_code=0, message="predicted 64 records", metrics={"loss": 0.5}, **COMMON)
    lines = ("Succeeded", "  metrics     loss 0.5", "  result      predicted 64 records")
    assert success_lines(done, "p.parquet.run", predicts=True) == lines
    assert event_lines(done) == [], "the end is not printed twice"

"""Events among the other lines of a log, and the metrics by step that they make."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mptraining_api.events import Event, Finished, Notice, Progress, Recovered, Saved, Started, parse
from mptraining_api.outputs.scalars import Restart, Scalar, ScalarSeries

COMMON: dict[str, Any] = {"attempt": 1, "incarnation": "a", "worker": 0}


def progress(step: int, **fields: Any) -> Progress:
    return Progress(time=float(step), step=step, epoch=1, **{"metrics": {"loss": 1.0 / step}, **COMMON, **fields})


def started(first_step: int, total_steps: int | None = 100) -> Started:
    return Started(
        time=0.0, strategy="Mirrored", precision="float32", keras="keras", tensorflow="2", devices=(), workers=1,
        replicas_in_sync=1, first_step=first_step, total_steps=total_steps, **COMMON,
    )  # fmt: skip


def surviving(events: list[Event]) -> list[Scalar]:
    """Return what a reader such as TensorBoard shows of the events."""
    series, found = ScalarSeries(), dict[tuple[str, int], Scalar]()
    for item in (item for event in events for item in series.add(event)):
        if isinstance(item, Restart):
            found = {key: scalar for key, scalar in found.items() if scalar.step <= item.step}
        else:
            found[item.name, item.step] = item
    return list(found.values())


def test_metrics_and_gauges_of_a_progress() -> None:
    series = ScalarSeries()
    assert series.add(started(7)) == [Restart(7, 0.0)]
    found = series.add(progress(8, metrics={"loss": 0.5, "val_loss": 0.75}, learning_rate=0.01, cpu_percent=90.0))
    assert found == [
        Scalar("train", "loss", 8, 8.0, 0.5),
        Scalar("validation", "loss", 8, 8.0, 0.75),
        Scalar("train", "training/learning_rate", 8, 8.0, 0.01),
        Scalar("train", "system/cpu_percent", 8, 8.0, 90.0),
    ]
    assert [each.name for each in found if isinstance(each, Scalar)][:2] == ["loss", "val_loss"]


@pytest.mark.parametrize(("values", "steps"), [([0.9, 0.9, 0.8, 0.8], [1, 3]), ([math.nan, math.nan], [1])])
def test_a_validation_is_drawn_once(values: list[float], steps: list[int]) -> None:
    """Progress between two validations repeats the last values."""
    series = ScalarSeries()
    lines = [progress(step, metrics={"val_loss": value}).to_json() for step, value in enumerate(values, start=1)]
    events = [event for line in lines if (event := parse(line)) is not None]
    assert [each.step for event in events for each in series.add(event) if isinstance(each, Scalar)] == steps


def test_steps_that_are_trained_again_count_once() -> None:
    recovered = Recovered(time=4.0, from_step=4, to_step=1, precision="float32", message="", **COMMON)
    events = [started(0), progress(1), progress(3), recovered, progress(2), progress(3, metrics={"loss": 9.0})]
    found = surviving(events)
    assert [(each.step, each.value) for each in found] == [(1, 1.0), (2, 0.5), (3, 9.0)]


@pytest.mark.parametrize("first_step", [10, 0])
def test_a_script_that_resumes_keeps_the_steps_before(first_step: int) -> None:
    """A script may not know where it resumes."""
    events = [started(0, None), progress(10), progress(20), started(first_step, None), progress(15), progress(20)]
    assert [each.step for each in surviving(events)] == [10, 15, 20]


def test_a_second_progress_of_a_step_replaces_the_first() -> None:
    """A script's epoch ends with the metrics of validation, at the step of the last Progress."""
    both = progress(10, metrics={"loss": 0.1, "val_loss": 0.2})
    events = [started(0, None), progress(10, metrics={"loss": 0.3}), both, both]
    found = surviving(events)
    assert [(each.name, each.value) for each in found] == [("loss", 0.1), ("val_loss", 0.2)]


TIMED: dict[str, Any] = COMMON | {"time": 1.5}
EVENTS = [
    Started(
        strategy="Mirrored", precision="float32", keras="Keras3", tensorflow="2.21", devices=("CPU:0",), workers=1,
        replicas_in_sync=1, **TIMED,
    ),
    Progress(**TIMED, step=10, epoch=1, metrics={"loss": 0.25}),
    Notice(**TIMED, topic="Features", message="inferred"),
    Saved(**TIMED, step=10, uri="gs://b/c", bytes=12, seconds=0.5),
    Recovered(**TIMED, from_step=20, to_step=10, precision="float32", message="loss was nan"),
    Finished(**TIMED, reason="Succeeded", exit_code=0, message="done"),
]  # fmt: skip


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_an_event_is_one_line_and_comes_back(event: Started) -> None:
    line = event.to_json()
    assert "\n" not in line
    assert parse(line + "\n") == event


@pytest.mark.parametrize(
    "line", ["", "Epoch 1/5", "{}", "[1]", '{"mptraining": 1, "kind": "FutureKind"}', '{"mptraining": 1, "kind"']
)
def test_any_other_line_is_no_event(line: str) -> None:
    assert parse(line) is None
    assert parse(EVENTS[1].to_json()[:-1] + ', "newer": {"a": 1}}') == EVENTS[1]

"""Events among the other lines of a log."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_api.events import Finished, Notice, Progress, Recovered, Saved, Started, parse

COMMON: dict[str, Any] = {"time": 1.5, "attempt": 1, "incarnation": "u", "worker": 0}
EVENTS = [
    Started(
        strategy="Mirrored", precision="float32", keras="Keras3", tensorflow="2.21", devices=("CPU:0",), workers=1,
        replicas_in_sync=1, **COMMON,
    ),
    Progress(**COMMON, step=10, epoch=1, metrics={"loss": 0.25}),
    Notice(**COMMON, topic="Features", message="inferred"),
    Saved(**COMMON, step=10, uri="gs://b/c", bytes=12, seconds=0.5),
    Recovered(**COMMON, from_step=20, to_step=10, precision="float32", message="loss was nan"),
    Finished(**COMMON, reason="Succeeded", exit_code=0, message="done"),
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

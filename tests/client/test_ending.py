"""The last lines of an interrupted run (test_local tells of the others)."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from mptraining.ending import Story, Words, ending
from mptraining.verdict import End, GangEnd, verdict
from mptraining_api.events import Event, Progress, Saved, Started

COMMON: dict[str, Any] = {"time": 0.0, "attempt": 1, "incarnation": "x", "worker": 0}
STEP = Progress(step=80, total_steps=100, epoch=1, metrics={}, **COMMON)
SAVED = Saved(step=75, uri="x", bytes=1, seconds=0.1, **COMMON)
RESUMED = Started(
    strategy="Mirrored", precision="float32", keras="Keras3", tensorflow="2", devices=(), workers=1,
    replicas_in_sync=1, first_step=40, **COMMON,
)  # fmt: skip


@pytest.mark.parametrize(
    ("events", "code", "said"),
    [
        ([STEP, SAVED], 75, "Stopped at step 80. `mptj run x` goes on from step 75."),
        ([RESUMED, STEP], 75, "Stopped at step 80. `mptj run x` goes on from step 40."),
        ([], 75, "Stopped. `mptj run x` starts anew."),
        (
            [STEP, SAVED],
            -9,
            "Stopped at step 80; the trainer did not stop in time and was killed. `mptj run x` goes on from step 75.",
        ),
    ],
)
def test_interrupted(events: list[Event], code: int, said: str) -> None:
    story = Story()
    for event in events:
        story.add(0, event)
    end = GangEnd((End(0, code, told=True),), signal.SIGINT)
    assert ending(story, end, verdict(end), command="mptj run x", folder="runs/x") == Words((said,))

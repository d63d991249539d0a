"""SIGKILL and SIGTERM: exit codes, and the run that resumes; several workers are in tests/e2e/trainer."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from mptraining_api import events
from tests.testbed.attempts import ENDLESS, TWO_REPLICAS, Start, equal


def test_killed_in_mid_training_a_run_ends_with_the_weights_of_an_undisturbed_one(start: Start) -> None:
    spec = {"accelerator": {"type": "cpu"}, "checkpoint": {"everySteps": 7}}
    # So many epochs that it still trains when its step 30 has been read.
    whole = start(spec, "whole", epochs=12, stepsPerExecution=1)
    killed = start(spec, "killed", epochs=12, stepsPerExecution=1)
    killed.until(step=30)
    killed.processes[0].kill()
    assert killed.wait() == [-signal.SIGKILL]
    assert not (killed.folder / "model").exists()
    rest = start(spec, "killed", epochs=12)
    assert (whole.wait(), rest.wait()) == ([0], [0])
    (started,) = rest.all(events.Started)
    assert 0 < started.first_step < 264
    assert equal(whole, rest)
    # Sums of float32 over other executions: the last digits of the mean loss may differ, no weight does.
    assert rest.metrics() == pytest.approx(whole.metrics(), rel=1e-6)


def test_a_sigterm_ends_the_run_with_a_checkpoint_at_that_step(start: Start) -> None:
    told = start(TWO_REPLICAS, **ENDLESS)
    told.until(step=10)
    told.processes[0].terminate()
    assert told.wait(60) == [75]
    saved, finished = told.all(events.Saved)[-1], told.finished()
    assert f"step {saved.step}: this machine is being preempted; saved" in finished.message
    assert (finished.reason, finished.exit_code) == ("Preempted", 75)
    assert saved.step >= max(event.step for event in told.all(events.Progress))
    assert Path(saved.uri, "state.json").exists()
    assert told.errors() == ""

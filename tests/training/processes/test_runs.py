"""Workers that train to the end, are killed, or get SIGTERM: exit codes, and the run that resumes.

More kills, and of several workers, are in tests/e2e/trainer.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from mptraining_api import events
from tests.testbed.attempts import ENDLESS, TWO_REPLICAS, TWO_WORKERS, Start, equal


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


def test_two_workers_train_what_two_replicas_do(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    # Workers connect to each other directly; TensorFlow would use this proxy, which does not exist.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    workers, replicas = start(TWO_WORKERS, "workers", real=True, epochs=2), start(TWO_REPLICAS, "replicas", epochs=2)
    assert (workers.wait(), replicas.wait()) == ([0, 0], [0]), workers.errors()
    assert workers.metrics() == pytest.approx(replicas.metrics(), abs=1e-4)
    assert workers.finished(1).metrics == workers.metrics(), "both know the same"
    assert equal(workers, replicas, 1e-4)
    assert [event.step for event in workers.all(events.Saved)] == [22, 44]
    assert workers.all(events.Saved, worker=1) == []

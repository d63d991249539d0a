"""SIGTERM, SIGKILL and lost workers: exit codes, and the run that resumes."""

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


def test_a_sigterm_to_one_worker_ends_the_others_too(start: Start) -> None:
    """All exit after the same step, which the chief has saved."""
    gang = start(TWO_WORKERS, **ENDLESS)
    gang.until(step=4)
    gang.processes[1].terminate()
    assert gang.wait(60) == [75, 75]
    step = gang.all(events.Saved)[-1].step
    for worker in (0, 1):
        assert gang.finished(worker).message.startswith(f"step {step}: ")


@pytest.mark.parametrize("lost", [0, 1])
def test_a_worker_that_is_killed_is_missed_within_seconds(start: Start, lost: int) -> None:
    gang = start(TWO_WORKERS, **ENDLESS)
    gang.until(step=4)
    gang.processes[lost].kill()
    codes = gang.wait(60)
    assert codes[lost] == -signal.SIGKILL
    assert codes[1 - lost] == 76
    finished = gang.finished(1 - lost)
    assert finished.reason == "PeerLost"
    assert "Traceback" not in gang.errors(1 - lost)


FUNCTION = """
import multiprocessing, os, sys, time
import keras
fork = multiprocessing.get_context("fork")
def build():
    child = fork.Process(target=time.sleep, args=(600,))
    child.start()
    child.terminate()
    child.join(60)
    with fork.Pool(1) as pool:
        codes = [child.exitcode, *pool.map(abs, [-1])]
    for end in (lambda: sys.exit(7), lambda: int("no number")):
        if (process := os.fork()) == 0:
            end()
        codes.append(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
    print("CODES", codes, flush=True)
    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
"""


def test_a_function_may_start_processes(start: Start, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FUNCTION)
    spec = {"accelerator": {"type": "cpu"}, "program": {"function": {"entryPoint": "own:build"}}}
    done = start(spec, source=tmp_path)
    assert done.wait() == [0], done.errors()
    assert "CODES [-15, 1, 7, 1]" in done.outputs[0].read_text().splitlines()
    assert len(done.all(events.Started)) == len(done.all(events.Finished)) == 1

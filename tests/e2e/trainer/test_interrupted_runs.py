"""SIGTERM, SIGKILL and lost workers: exit codes, and the run that resumes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from mptraining_api import events
from tests.testbed.attempts import ENDLESS, TWO_WORKERS, Start


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

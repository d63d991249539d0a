"""`mptj run` that is interrupted: what it saves, prints and leaves behind."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.testbed.mptj import started

JobFile = Callable[..., Path]
Environment = Callable[..., dict[str, str]]


SAVES = """
def leave(*_):
    say("Saved", step=40, uri="x", bytes=1, seconds=0.1)
    finish("Preempted", 75, "told to stop")
signal.signal(signal.SIGTERM, leave)
say("Progress", step=40, total_steps=100, epoch=1, metrics={"loss": 0.5})
print("READY", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("number", "exit_code", "name"),
    [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM"), (signal.SIGHUP, 129, "SIGHUP")],
)
def test_a_signal_saves_stops_and_prints_how_to_resume(
    number: signal.Signals, exit_code: int, name: str, job_file: JobFile, environment: Environment
) -> None:
    job = job_file()
    process = started(job, environment(SAVES))
    process.send_signal(number)
    out, err = process.communicate(timeout=600)
    assert process.returncode == exit_code
    assert f"{name}: saving and stopping; a second signal stops it at once\n" in out
    by = " by you" if number == signal.SIGINT else ""
    assert out.endswith(f"Stopped{by}. `mptj run {job}` resumes from step 40.\n")
    assert err == ""


def test_ctrl_c_before_training_leaves_at_once(job_file: JobFile, environment: Environment) -> None:
    starts = "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('READY', flush=True); time.sleep(60)"
    job = job_file()
    process = started(job, environment(starts))
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 130
    assert out.startswith("Ctrl-C: stopping; training has not begun, and there is nothing to save\n")
    assert out.endswith(f"Stopped by you before training. `mptj run {job}` starts again.\n")
    # 0.3 s for the worker, and what a busy machine adds; 20 s where there is something to save.
    assert time.monotonic() - begin < 10


def test_a_worker_can_tell_its_user_from_a_lost_machine(job_file: JobFile, environment: Environment) -> None:
    tells = """
def leave(*_):
    print("by the user:", os.path.exists(os.environ["MPTRAINING_STOPPED_BY_USER_FILE"]), flush=True)
    finish("Preempted", 75, "told to stop")
signal.signal(signal.SIGTERM, leave)
say("Progress", step=40, total_steps=100, epoch=1, metrics={"loss": 0.5})
print("READY", flush=True)
time.sleep(60)
"""
    job, told = job_file(), environment(tells)
    for number, by_the_user in ((signal.SIGINT, True), (signal.SIGTERM, False)):
        process = started(job, told)
        process.send_signal(number)
        assert f"by the user: {by_the_user}\n" in process.communicate(timeout=600)[0]


def test_ctrl_c_twice_kills_at_once(job_file: JobFile, environment: Environment) -> None:
    stubborn = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
say("Progress", step=40, total_steps=100, epoch=1, metrics={"loss": 0.5})
print("READY", flush=True)
time.sleep(60)
"""
    process = started(job_file(), environment(stubborn))
    process.send_signal(signal.SIGINT)
    assert process.stdout
    assert process.stdout.readline().startswith("Ctrl-C")
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 130
    # Much sooner than it would end by itself: after the 20 s that it has for saving.
    assert time.monotonic() - begin < 15
    assert "the trainer did not stop in time and was killed" in out


def test_a_closed_pipe_ends_the_trainer_too(job_file: JobFile, environment: Environment) -> None:
    """`mptj run … | head`."""
    process = started(job_file(), environment("print('READY', os.getpid(), flush=True)\nwhile True: print('x' * 1000)"))
    assert process.stdout
    process.stdout.close()
    process.wait(timeout=600)
    assert process.returncode == 1
    assert process.stderr
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()

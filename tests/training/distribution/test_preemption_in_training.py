"""The loop handles SIGTERM itself, and the watchdog exits if the loop does not respond; in real processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

# The programs' work after the watch has begun; 75 is the watchdog's exit code.
WATCH = """
import os, sys, threading
from mptraining_trainer.distribution.preemption import Preemption
preemption = Preemption(lambda: os._exit(75), grace=float(sys.argv[1]))
preemption.watch()
print("ready", flush=True)
"""
ASKS = """
while not preemption.stop_requested():
    threading.Event().wait(0.01)
print("asked", flush=True)
os._exit(9)
"""
# A C call that releases the lock, as TensorFlow's do.


@contextmanager
def watching(program: str, grace: float) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", WATCH + program, str(grace)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    "program", ["import tensorflow\nprint('up', flush=True)\n" + ASKS], ids=["after importing TensorFlow"]
)
def test_tensorflows_threads_do_not_take_the_signal(program: str) -> None:
    with watching(program, grace=60) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(240) == 9

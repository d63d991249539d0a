"""A process that watches for preemption while it runs a program."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# The programs' work after the watch has begun; 75 is the watchdog's exit code.
WATCH = """
import os, sys, threading
from mptraining_trainer.devices.preemption import Preemption
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

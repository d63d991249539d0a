"""Ends a run's workers when the program that started them is gone without having done so (SIGKILL, a crash).

Started beside the workers as `python guard.py SECONDS`, a file of the standard library alone. Its standard
input is a pipe that only the starter holds: `+PID` names a worker's process group, `-PID` takes it back, end
of file means that the starter is gone: SIGTERM to the groups that are left, SIGKILL after SECONDS.

Linux' PR_SET_PDEATHSIG would be shorter, but needs code between fork and exec (unsafe once there are threads,
as in a notebook), dies with the thread that started the worker, reaches no grandchild, and never follows with
SIGKILL.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable


def groups_left(lines: Iterable[str]) -> list[int]:
    """The process groups that were named and not taken back when the input ended."""
    left: dict[int, None] = {}
    for line in lines:
        sign, number = line[:1], line[1:].strip()
        if number.isdecimal() and sign == "+":
            left[int(number)] = None
        elif number.isdecimal():
            left.pop(int(number), None)
    return list(left)


def _send(groups: list[int], number: int) -> list[int]:
    """The groups that `number` reached; 0 only asks whether they are there."""
    reached = []
    for group in groups:
        try:
            os.killpg(group, number)
        except (ProcessLookupError, PermissionError):
            continue
        reached.append(group)
    return reached


def main(seconds: float) -> None:
    left = _send(groups_left(sys.stdin), signal.SIGTERM)
    end = time.monotonic() + seconds
    while left and time.monotonic() < end:
        time.sleep(0.05)
        left = _send(left, 0)
    _send(left, signal.SIGKILL)


if __name__ == "__main__":
    main(float(sys.argv[1]))

"""Watchdog process that ends a local run's workers if their parent process dies without doing so (SIGKILL, a crash).

Runs as `python watchdog.py SECONDS` and imports only the standard library. Its standard input is a pipe whose other
end only the parent holds: `+PID` registers a worker's process group, `-PID` unregisters it. End of file means that the
parent has died: the remaining groups get SIGTERM, and SIGKILL after SECONDS.

Linux' PR_SET_PDEATHSIG needs code between fork and exec (unsafe with threads, as in a notebook), fires when the thread
that started the worker ends, does not reach grandchildren, and is not followed by SIGKILL.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable


def groups_left(lines: Iterable[str]) -> list[int]:
    """Return the process groups that are still registered at the end of the input."""
    left: dict[int, None] = {}
    for line in lines:
        sign, number = line[:1], line[1:].strip()
        if number.isdecimal() and sign == "+":
            left[int(number)] = None
        elif number.isdecimal():
            left.pop(int(number), None)
    return list(left)


def _send(groups: list[int], number: int) -> list[int]:
    """Send the signal `number` to the groups; return those that exist. 0 only checks for existence."""
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

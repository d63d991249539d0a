"""Boundary between the trainer and the children that a user's program forks: a child is a plain Python process.

A process that is spawned or executed has nothing of the trainer. A forked one inherits everything: signal handlers,
changed classes of Keras, locks, and the trainer's own calls on its stack.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

_drops: list[Callable[[], None]] = []
_forking = threading.local()


def drop_in_children(drop: Callable[[], None]) -> Callable[[], None]:
    """Call `drop` in each forked child, the last one first; return a function that withdraws it."""
    _drops.append(drop)

    def withdraw() -> None:
        # A child has called all of them.
        if drop in _drops:
            _drops.remove(drop)

    return withdraw


def _block() -> None:
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _drop_all() -> None:
    while _drops:
        _drops.pop()()
    _unblock()


# A child may be terminated before it has run anything, while the handler and its pipe are still the trainer's.
os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_drop_all)


@contextmanager
def user_code() -> Iterator[None]:
    """End a child of `os.fork` where the user's code ends: what the trainer does afterwards is its parent's work."""
    process = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != process:
            _exit(_exit_code(error))
        raise
    if os.getpid() != process:
        _exit(0)


def _exit_code(error: BaseException) -> int:
    """Return the exit code that Python gives an error that ends a program, after the same message on stderr."""
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
    elif error.code is None or isinstance(error.code, int):
        return error.code or 0
    else:
        sys.stderr.write(f"{error.code}\n")
    return 1


def _exit(code: int) -> NoReturn:
    # Without the interpreter's shutdown, whose finalizers would delete folders of the trainer.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)

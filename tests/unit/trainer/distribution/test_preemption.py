"""The loop handles SIGTERM itself, and the watchdog exits if the loop does not respond; in real processes."""

from __future__ import annotations

import signal

import pytest

from tests.testbed.watched_program import ASKS, watching

# A C call that releases the lock, as TensorFlow's do.
STUCK = """
import ctypes
# A signal that this thread takes ends a sleep.
while True:
    ctypes.CDLL(None).sleep(600)
"""
CHILD = """
import subprocess
preemption.unblock_for_children()
child = subprocess.Popen([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"],
                         stdout=subprocess.PIPE)
child.stdout.readline()
child.terminate()
print(child.wait(120), flush=True)
"""


SCRIPT = """
preemption.unblock_for_children()
import signal
signal.signal(signal.SIGTERM, lambda *_: print("the script's own handler", flush=True))
"""
ASYNCIO = """
preemption.unblock_for_children()
import asyncio, signal
async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, print)
    asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("begin", "end"),
    [("", ASKS), ("", STUCK), (SCRIPT, ASKS), (SCRIPT, STUCK), (ASYNCIO, ASKS)],
    ids=["the loop leaves", "the loop does not answer", "a script leaves", "a script does not answer", "wake-up pipe"],
)
def test_a_sigterm_is_seen_and_a_process_that_does_not_respond_is_ended(begin: str, end: str) -> None:
    with watching(begin + 'print("up", flush=True)' + end, grace=0.2 if end == STUCK else 60) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(240) == (75 if end == STUCK else 9)


def test_without_a_sigterm_no_stop_is_requested() -> None:
    with watching("print(preemption.stop_requested(), flush=True)", grace=60) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "False\n"
        assert process.wait(60) == 0, "the watching thread keeps no process alive"


def test_a_child_of_the_users_script_can_still_be_ended() -> None:
    """A blocked signal is inherited through exec, and subprocess.Popen runs none of Python's fork hooks."""
    with watching(CHILD, grace=60) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{-signal.SIGTERM}\n"


FORKED = """
import multiprocessing, time
preemption.unblock_for_children()
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(abs, [-1, 2]), flush=True)
def forked(end=lambda: time.sleep(600)):
    child = os.fork()
    if child == 0:
        end()
        os._exit(3)
    # At once: the child may have run nothing yet.
    os.kill(child, 15)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print({forked() for _ in range(20)}, preemption.stop_requested(), flush=True)
"""


def test_a_terminated_forked_child_is_no_preemption() -> None:
    with watching(FORKED + ASKS, grace=60) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "[1, 2]\n"
        assert process.stdout.readline() == f"{{{-signal.SIGTERM}}} False\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 9, "the parent still receives its own"


INHERITED = """
preemption.unblock_for_children()
import signal
signal.signal(signal.SIGTERM, lambda *_: os._exit(4))
child = os.fork()
if child == 0:
    signal.pause()
os.kill(child, 15)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_a_forked_child_has_the_handler_that_the_program_installed() -> None:
    with watching(INHERITED, grace=60) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "4\n"

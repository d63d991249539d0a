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


UP = 'print("up", flush=True)'
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


ENDED = -signal.SIGTERM


@pytest.mark.parametrize(
    ("program", "lines", "exit_code"),
    [
        pytest.param(UP + ASKS, ["up"], 9, id="the loop leaves"),
        pytest.param(UP + STUCK, ["up"], 75, id="the loop does not answer"),
        pytest.param(SCRIPT + UP + ASKS, ["up"], 9, id="a script leaves"),
        pytest.param(SCRIPT + UP + STUCK, ["up"], 75, id="a script does not answer"),
        pytest.param(ASYNCIO + UP + ASKS, ["up"], 9, id="wake-up pipe"),
        # A forked child that is terminated is no preemption; the parent still receives its own.
        pytest.param(FORKED + ASKS, ["[1, 2]", f"{{{ENDED}}} False"], 9, id="a forked child"),
    ],
)
def test_a_sigterm_is_seen_and_a_process_that_hangs_is_ended(program: str, lines: list[str], exit_code: int) -> None:
    with watching(program, grace=0.2 if exit_code == 75 else 60) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in lines] == [f"{line}\n" for line in lines]
        process.send_signal(signal.SIGTERM)
        assert process.wait(240) == exit_code


@pytest.mark.parametrize(
    ("program", "line"),
    [
        # The watching thread keeps no process alive.
        pytest.param("print(preemption.stop_requested(), flush=True)", "False", id="no stop is requested"),
        # A blocked signal is inherited through exec, and subprocess.Popen runs none of Python's fork hooks.
        pytest.param(CHILD, str(ENDED), id="a child of the user's script can be ended"),
        pytest.param(INHERITED, "4", id="a forked child has the program's own handler"),
    ],
)
def test_programs_that_get_no_sigterm(program: str, line: str) -> None:
    with watching(program, grace=60) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{line}\n"
        assert process.wait(60) == 0

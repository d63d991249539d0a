"""The loop handles SIGTERM itself, and the watchdog exits if the loop does not respond; in real processes."""

from __future__ import annotations

import signal

import pytest

from tests.testbed.watched_program import ASKS, watching


@pytest.mark.parametrize(
    "program", ["import tensorflow\nprint('up', flush=True)\n" + ASKS], ids=["after importing TensorFlow"]
)
def test_tensorflows_threads_do_not_take_the_signal(program: str) -> None:
    with watching(program, grace=60) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(240) == 9

"""A unit test takes at most a second of this process' processor time on a quiet machine."""

from __future__ import annotations

import time
from collections.abc import Generator

import pytest

# Other processes empty the caches and share the core's units: the same test takes up to four times the time.
MOST = 4.0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    began = time.process_time()
    yield
    seconds = time.process_time() - began
    # The long form of the random tests has no limit.
    if seconds > MOST and item.config.getoption("--hypothesis-profile") != "soak":
        pytest.fail(f"{seconds:.1f} s of processor time; a unit test has {MOST:g} s: move it to tests/training")

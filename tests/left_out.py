"""What a test leaves out: rows that only `make test-all` runs, and what this machine lacks."""

from __future__ import annotations

import os
from typing import Any, NoReturn

import pytest

TEST_ALL = pytest.mark.test_all


def first_of(*rows: Any) -> list[Any]:
    """Return the rows of `parametrize`, or the values of a fixture: `make test` runs the first, `make test-all` all."""
    others = [row if isinstance(row, tuple) else (row,) for row in rows[1:]]
    return [rows[0], *(pytest.param(*row, marks=TEST_ALL) for row in others)]


def leave_out(why: str) -> NoReturn:
    """Skips the test and says why; fails in CI, where nothing may be left out."""
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)

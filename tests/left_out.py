"""What a test does that lacks something of this machine's."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def leave_out(why: str) -> NoReturn:
    """Skips the test and says why; fails in CI, where nothing may be left out."""
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)

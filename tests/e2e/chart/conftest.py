"""helm and kube-score; without them these tests are left out and say so, in CI they fail."""

from __future__ import annotations

import pytest

from tests.left_out import leave_out
from tests.testbed.binaries import missing


@pytest.fixture(scope="session", autouse=True)
def checkers() -> None:
    if absent := missing(("helm", "kube-score")):
        leave_out(absent)

"""helm and what checks its output; without them these tests are left out and say so, in CI they fail."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.testbed.binaries import missing

CHECKERS = ("helm", "kubeconform", "kube-score")


@pytest.fixture(scope="session", autouse=True)
def checkers() -> None:
    absent = missing(CHECKERS)
    if absent is None:
        return
    if shutil.which("go") or os.environ.get("CI"):
        pytest.fail(absent)
    pytest.skip(f"{absent}, and no Go to build it with")

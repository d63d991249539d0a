"""The namespace of a module, named after it, whose pods the real scheduler places on simulated nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.testbed import ControlPlane


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, scheduled: ControlPlane, new_namespace: Any) -> Iterator[Any]:
    """A namespace with an operator."""
    module = request.module
    ns = new_namespace(scheduled, module.__name__.rpartition("test_")[2])
    ns.operator()
    yield ns
    ns.close()

"""The job to which the tests apply plans."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes import Clock
from tests.unit.operator.api_objects import raw_job
from tests.unit.operator.apply.applied_job import Bench


@pytest.fixture
def bench(api: Any, clock: Clock) -> Bench:
    return Bench(api, clock, raw_job())

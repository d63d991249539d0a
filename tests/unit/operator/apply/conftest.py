"""The job to which the tests apply plans."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_operator.resources import job_objects
from tests.fakes import Clock
from tests.unit.operator.api_objects import raw_job
from tests.unit.operator.apply.applied_job import Bench


@pytest.fixture
def bench(api: Any, clock: Clock) -> Bench:
    return Bench(api, clock, raw_job())


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """No job fits into a pod template."""
    monkeypatch.setattr(job_objects, "_LARGEST_ANNOTATION", 0)

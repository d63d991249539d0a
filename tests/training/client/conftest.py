"""Job files, run folders, a stub of the trainer, and an exported model."""

from __future__ import annotations

from tests.testbed.exported_model import exported  # noqa: F401
from tests.testbed.stub_trainer import attempt_events, environment, job_file, run_in, stub  # noqa: F401

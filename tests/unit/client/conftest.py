"""Job files, run folders and a stub of the trainer."""

from __future__ import annotations

from tests.testbed.stub_trainer import attempt_events, environment, here, job_file, run_in, stub  # noqa: F401

"""Fixtures of the tests of storage."""

from __future__ import annotations

from tests.testbed.record_files import folder  # noqa: F401

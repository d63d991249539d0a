"""Fixtures of the tests of records."""

from __future__ import annotations

from tests.testbed.record_files import flip, folder, write_shard  # noqa: F401

"""Trainer processes as a cluster starts them."""

from __future__ import annotations

from tests.testbed.digits_attempts import digits, start  # noqa: F401

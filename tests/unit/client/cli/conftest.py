"""`mptj` in this process, which a test of its output needs no interpreter of its own for."""

from __future__ import annotations

from tests.testbed.mptj import mptj_in_this_process  # noqa: F401

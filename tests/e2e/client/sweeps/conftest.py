"""Files of sweeps and their trainer."""

from __future__ import annotations

from tests.testbed.sweep_files import sweep_file, trainer  # noqa: F401

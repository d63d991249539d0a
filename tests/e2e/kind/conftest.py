"""The kind cluster, with more time for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testbed.kind_cluster import kind  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(1800))

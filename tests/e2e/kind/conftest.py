"""The kind cluster, with more time for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testbed.kind_cluster import kind  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(1800))
    # These tests run last: the effects of paused nodes on Kubernetes itself must not reach the other tests.
    items.sort(key=lambda item: item.path.name == "test_chaos_on_kind.py")

"""The operator beside a real API server."""

from __future__ import annotations

from tests.testbed.kubernetes.operator_namespace import (  # noqa: F401
    alone,
    installed,
    new_namespace,
    node_server,
    ns,
    scheduled,
    shared,
    with_scheduler,
)

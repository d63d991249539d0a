"""The operator beside a real API server, and on a kind cluster."""

from __future__ import annotations

from tests.testbed.kind_cluster import kind  # noqa: F401
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

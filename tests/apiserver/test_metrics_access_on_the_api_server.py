"""Reviews of scrapers' tokens by a real API server, with real roles."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from mptraining_operator.cluster import Cluster
from mptraining_operator.monitoring.metrics_access import REFUSED_SECONDS, AccessDenied, MetricsAccess
from tests.fakes import Clock
from tests.testbed import ControlPlane
from tests.testbed.kubernetes.access import wait_until

RBAC = "/apis/rbac.authorization.k8s.io/v1"


class World:
    def __init__(self, control_plane: ControlPlane, namespace: str) -> None:
        self.control_plane = control_plane
        self.namespace = namespace
        self.role = f"{namespace}-metrics-reader"
        self.clock = Clock()
        cluster = Cluster(control_plane.client())
        self.access = MetricsAccess(cluster.review_token, cluster.review_access, self.clock)

    def status(self, token: str) -> int:
        # Each question is answered by the API server, not from the cache.
        self.clock.now += 10 * REFUSED_SECONDS
        try:
            asyncio.run(self.access.authorize(f"Bearer {token}"))
        except AccessDenied as denied:
            return denied.status
        return 200

    def bind(self, account: str) -> None:
        """Create and bind the role as the chart and the guide do."""
        rest, name = self.control_plane.rest, {"name": self.role}
        rules = [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
        rest.post(f"{RBAC}/clusterroles", {"metadata": name, "rules": rules})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": self.role}
        subjects = [{"kind": "ServiceAccount", "name": account, "namespace": self.namespace}]
        rest.post(f"{RBAC}/clusterrolebindings", {"metadata": name, "roleRef": role, "subjects": subjects})


@pytest.fixture
def world(control_plane: ControlPlane, namespace: str) -> Iterator[World]:
    found = World(control_plane, namespace)
    yield found
    found.access.stop()


def test_only_an_account_with_the_role_reads_metrics(world: World) -> None:
    token = world.control_plane.token(world.namespace, "default")
    assert world.status(token) == 403
    world.bind("default")
    wait_until(lambda: world.status(token) == 200, "the role is bound")
    assert world.status(token[:-4] + "AAAA") == 401
    other = world.control_plane.token(world.namespace, "default", audiences=["vault"])
    assert world.status(other) == 401, "a token for another audience"

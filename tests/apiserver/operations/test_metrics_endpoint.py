"""The operator's /metrics behind a token on a real API server, with the series of single jobs."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from typing import Any

from tests.testbed.kubernetes.installation import OPERATOR, SYSTEM
from tests.testbed.processes import free_ports

_RBAC = "/apis/rbac.authorization.k8s.io/v1"


def bind(ns: Any, name: str, rule: dict[str, list[str]], account: str, namespace: str) -> None:
    """Give an account a right in the whole cluster, as the chart and its administrator do."""
    metadata = {"name": f"{ns.namespace}-{name}"}
    ns.rest.post(f"{_RBAC}/clusterroles", {"metadata": metadata, "rules": [rule]})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": metadata["name"]}
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    ns.rest.post(f"{_RBAC}/clusterrolebindings", {"metadata": metadata, "roleRef": role, "subjects": [subject]})


def get(port: int, path: str, token: str = "") -> tuple[int, str]:
    request = urllib.request.Request(f"https://127.0.0.1:{port}{path}")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    # As a scraper does: each replica issues its certificate at its start.
    context = ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_scraper_needs_a_token_and_a_role_and_then_reads_the_progress_of_jobs(alone: Any) -> None:
    (port,) = free_ports(1)
    review = {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]}
    bind(alone, "reviews", review, OPERATOR, SYSTEM)
    alone.operator(healthPort=port, metrics={"perJob": True, "authentication": "TokenReview"})
    assert get(port, "/healthz")[0] == 200
    assert get(port, "/metrics")[0] == 401
    # The default account of the namespace plays Prometheus. A refusal is cached for ten seconds, by the token.
    stranger = alone.control_plane.token(alone.namespace, "default")
    code, text = get(port, "/metrics", stranger)
    assert code == 403
    assert f"system:serviceaccount:{alone.namespace}:default may not get /metrics" in text
    bind(alone, "reader", {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}, "default", alone.namespace)
    alone.wait(
        lambda: get(port, "/metrics", alone.control_plane.token(alone.namespace, "default")),
        lambda found: found[0] == 200,
    )
    token = alone.control_plane.token(alone.namespace, "default")

    alone.create("flowers")
    alone.running("flowers")
    progress = {"attempt": 1, "step": 30, "totalSteps": 100, "metrics": [{"name": "loss", "value": "0.5"}]}
    alone.patch("flowers", {"status": {"progress": progress}}, "status")
    labels = f'job_name="flowers",job_namespace="{alone.namespace}"'
    expected = {
        f"mptraining_job_step{{{labels}}} 30.0",
        f'mptraining_job_metric{{{labels},metric="loss"}} 0.5',
        "mptraining_created_to_child_seconds_count 1.0",
        "mptraining_created_to_running_seconds_count 1.0",
        'mptraining_lease_changes_total{change="Acquired"} 1.0',
        "mptraining_paused 0.0",
    }
    alone.wait(lambda: set(get(port, "/metrics", token)[1].splitlines()), lambda lines: expected <= lines)
    alone.delete("flowers")
    alone.wait(lambda: get(port, "/metrics", token)[1], lambda text: labels not in text)

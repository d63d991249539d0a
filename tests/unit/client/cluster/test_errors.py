"""The API server's responses as problems; those of a real one are in tests/apiserver/client/test_mptj_refused.py."""

from __future__ import annotations

import shlex

import pytest

from mptraining.cluster.api import ApiServer
from mptraining.cluster.connection import Cluster, connect_for
from mptraining.cluster.errors import ClusterProblem, NotAllowed, Request, cluster_problem
from mptraining_api.kubernetes_api import ApiProblem, Raw, api_problem
from mptraining_api.problems import InvalidSpec

LIST = Request("list", "mptrainingjobs", "mptraining.dev", "team", "", "prod")


def test_the_grant_to_a_user_is_one_command() -> None:
    message = 'mptrainingjobs is forbidden: User "ada@example.com" cannot list resource "mptrainingjobs" in API group'
    problem = cluster_problem(LIST, ApiProblem(403, "Forbidden", message))
    assert isinstance(problem, NotAllowed)
    command = shlex.split(str(problem).partition("kubectl ")[2])
    assert command[:2] == ["create", "rolebinding"]
    assert {"--user=ada@example.com", "--clusterrole=view", "--namespace=team"} <= set(command)


@pytest.mark.parametrize("body", ["<html>Bad Gateway</html>", b"\xff\xfe", "[]", '{"details": null}'])
def test_a_response_of_another_server_is_still_shown(body: str | bytes) -> None:
    problem = cluster_problem(LIST, api_problem(502, body))
    assert (type(problem), problem.status) == (ClusterProblem, 502)
    assert str(problem).startswith("prod: list mptrainingjobs: HTTP 502")


def test_an_object_to_create_and_the_cluster_name_one_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    def server(cluster: Cluster) -> ApiServer:
        return ApiServer(None, name="prod", namespace=cluster.namespace or "default")

    monkeypatch.setattr("mptraining.cluster.connection.connect", server)
    body: Raw = {"metadata": {"name": "flowers"}}
    assert (connect_for(body, Cluster()).namespace, body["metadata"]["namespace"]) == ("default", "default")
    body = {"metadata": {"name": "flowers", "namespace": "team"}}
    assert connect_for(body, Cluster()).namespace == connect_for(body, Cluster(namespace="team")).namespace == "team"
    with pytest.raises(InvalidSpec, match=r"metadata\.namespace: 'team' in the document, 'other' asked for"):
        connect_for(body, Cluster(namespace="other"))

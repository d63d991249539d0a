"""The API server's responses as problems; those of a real one are in tests/apiserver/client/test_mptj_refused.py."""

from __future__ import annotations

import shlex

import pytest

from mptraining.cluster.errors import ClusterProblem, NotAllowed, Request, Unreachable, cluster_problem
from mptraining_api.kubernetes_api import ApiProblem, api_problem

LIST = Request("list", "mptrainingjobs", "mptraining.dev", "team", "", "prod")
FORBIDDEN = 'mptrainingjobs is forbidden: User "{}" cannot list resource "mptrainingjobs" in API group'


@pytest.mark.parametrize(
    ("user", "subject"),
    [
        ("ada@example.com", "--user=ada@example.com"),
        ("system:serviceaccount:team:notebook", "--serviceaccount=team:notebook"),
    ],
)
def test_the_grant_is_one_command(user: str, subject: str) -> None:
    problem = cluster_problem(LIST, ApiProblem(403, "Forbidden", FORBIDDEN.format(user)))
    assert isinstance(problem, NotAllowed)
    command = shlex.split(str(problem).partition("kubectl ")[2])
    assert command[:2] == ["create", "rolebinding"]
    assert {subject, "--clusterrole=view", "--namespace=team"} <= set(command)


def test_no_response_may_be_temporary() -> None:
    problem = cluster_problem(LIST, ApiProblem(0, "NoAnswer", "Connection refused"))
    assert isinstance(problem, Unreachable)
    assert (problem.exit_code, problem.status) == (75, 0)


@pytest.mark.parametrize("body", ["<html>Bad Gateway</html>", b"\xff\xfe", "[]", '{"details": null}'])
def test_a_response_of_another_server_is_still_shown(body: str | bytes) -> None:
    problem = cluster_problem(LIST, api_problem(502, body))
    assert (type(problem), problem.status) == (ClusterProblem, 502)
    assert str(problem).startswith("prod: list mptrainingjobs: HTTP 502")

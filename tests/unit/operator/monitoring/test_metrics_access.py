"""Who may read /metrics: a token that the API server accepts, of a user whom RBAC allows to get the URL."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from mptraining_api.kubernetes_api import ApiProblem
from mptraining_operator.monitoring import metrics_access
from mptraining_operator.monitoring.metrics_access import ACCEPTED_SECONDS, REFUSED_SECONDS, AccessDenied, MetricsAccess
from tests.fakes import Clock

PROMETHEUS = {
    "username": "system:serviceaccount:monitoring:prometheus",
    "uid": "u",
    "groups": ["a"],
    "extra": {"b": []},
}
OTHER = {"username": "system:serviceaccount:team:default"}


class ApiServer:
    """TokenReview and SubjectAccessReview; `before` is called at the beginning of each review of a token."""

    def __init__(self) -> None:
        self.users = {"good": PROMETHEUS, "other": OTHER}
        self.allowed = [PROMETHEUS["username"]]
        self.tokens: list[str] = []
        self.asked: list[tuple[Mapping[str, Any], str, str]] = []
        self.problem: Exception | None = None
        self.before: Callable[[], object] = lambda: None

    def review_token(self, token: str, audiences: tuple[str, ...]) -> Mapping[str, Any]:
        assert audiences == (), "of the API server itself"
        self.before()
        self.tokens.append(token)
        if self.problem is not None:
            raise self.problem
        user = self.users.get(token)
        return {"authenticated": True, "user": user} if user else {"authenticated": False, "error": "invalid"}

    def review_access(self, user: Mapping[str, Any], path: str, verb: str) -> bool:
        self.asked.append((user, path, verb))
        return user["username"] in self.allowed


@pytest.fixture
def server() -> ApiServer:
    return ApiServer()


@pytest.fixture
def access(server: ApiServer, clock: Clock) -> Iterator[MetricsAccess]:
    found = MetricsAccess(server.review_token, server.review_access, clock)
    yield found
    found.stop()


def status(access: MetricsAccess, authorization: str | None) -> tuple[int, str]:
    try:
        asyncio.run(access.authorize(authorization))
    except AccessDenied as denied:
        return denied.status, str(denied)
    return 200, ""


def test_a_token_of_an_allowed_user_is_accepted(access: MetricsAccess, server: ApiServer) -> None:
    assert status(access, "Bearer good") == (200, "")
    assert server.asked == [(PROMETHEUS, "/metrics", "get")]
    assert status(access, "bearer  good") == (200, "")


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer ", "Basic good", "good"])
def test_without_a_bearer_token_nothing_is_reviewed(
    access: MetricsAccess, server: ApiServer, authorization: str | None
) -> None:
    code, text = status(access, authorization)
    assert code == 401
    assert "Authorization: Bearer" in text
    assert server.tokens == []


def test_a_token_that_the_api_server_does_not_accept(access: MetricsAccess, server: ApiServer) -> None:
    assert status(access, "Bearer forged")[0] == 401
    assert server.asked == []


def test_a_user_without_the_right_is_named_with_the_role_to_bind(access: MetricsAccess) -> None:
    code, text = status(access, "Bearer other")
    assert code == 403
    assert "system:serviceaccount:team:default may not get /metrics" in text
    assert "-metrics-reader" in text


def test_reviews_are_cached_for_a_short_time(access: MetricsAccess, server: ApiServer, clock: Clock) -> None:
    for _ in range(3):
        assert status(access, "Bearer good")[0] == 200
        assert status(access, "Bearer other")[0] == 403
    assert server.tokens == ["good", "other"]
    # The role is bound: a refusal is reviewed again sooner than an acceptance.
    server.allowed.append(OTHER["username"])
    clock.now += REFUSED_SECONDS
    assert status(access, "Bearer other")[0] == 200
    assert status(access, "Bearer good")[0] == 200
    assert server.tokens == ["good", "other", "other"]
    # The role is taken away.
    server.allowed.clear()
    clock.now += ACCEPTED_SECONDS - REFUSED_SECONDS
    assert status(access, "Bearer good")[0] == 403


def test_no_token_is_kept_in_memory(access: MetricsAccess) -> None:
    status(access, "Bearer good")
    assert len(access._cache) == 1
    assert "good" not in repr(access._cache.__dict__)


def test_the_cache_is_bounded(server: ApiServer, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_access, "_MOST_CACHED", 3)
    access = MetricsAccess(server.review_token, server.review_access, clock)
    for number in range(10):
        status(access, f"Bearer {number}")
    assert 0 < len(access._cache) <= 3
    access.stop()


def test_an_api_server_that_does_not_answer_is_503_and_reviewed_again(access: MetricsAccess, server: ApiServer) -> None:
    server.problem = ApiProblem(0, "NoAnswer", "timed out")
    assert status(access, "Bearer good")[0] == 503
    server.problem = None
    assert status(access, "Bearer good")[0] == 200


def test_strangers_cannot_queue_any_number_of_reviews(
    server: ApiServer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_access, "_MOST_WAITING", 3)
    access = MetricsAccess(server.review_token, server.review_access, clock)
    released = threading.Event()
    server.before = lambda: released.wait(60)

    async def many() -> list[int]:
        async def one(number: int) -> int:
            try:
                await access.authorize(f"Bearer {number}")
            except AccessDenied as denied:
                return denied.status
            return 200

        tasks = [asyncio.create_task(one(number)) for number in range(5)]
        await asyncio.sleep(0)
        refused = [await tasks[3], await tasks[4]]
        released.set()
        return [*await asyncio.gather(*tasks[:3]), *refused]

    assert asyncio.run(many()) == [401, 401, 401, 503, 503]
    assert len(server.tokens) == 3


def test_each_refusal_tells_the_client_how_to_continue() -> None:
    assert AccessDenied(401, "").headers == {"WWW-Authenticate": "Bearer"}
    assert AccessDenied(503, "").headers == {"Retry-After": "10"}
    assert AccessDenied(403, "").headers == {}

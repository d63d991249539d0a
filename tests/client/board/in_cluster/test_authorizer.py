"""Reviews of tokens and rights: their number, their scope, and the expiry of tokens."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

import pytest
from starlette.requests import Request

from mptraining.board.access import Right
from mptraining.board.board import Board
from mptraining.board.in_cluster.application import NamespaceRights
from mptraining.board.in_cluster.authorizer import REFUSED_SECONDS, Authorizer, request_token
from mptraining.board.rows import JobFacts
from mptraining.board.server import Denied, visible_changes
from mptraining_api.access.review_cache import ReviewCache
from mptraining_api.access.reviews import token_expiry
from mptraining_api.kubernetes_api import TOKEN_REVIEWS, ApiProblem, Resource
from tests.fakes import Clock


def encoded(claims: str) -> str:
    return f"x.{base64.urlsafe_b64encode(claims.encode()).decode().rstrip('=')}.y"


# Claims that a stranger may write: a number beyond every float, and lists within lists.
FORGED = (encoded(f'{{"exp":1{"0" * 400}}}'), encoded("[" * 20_000), encoded('{"exp":900}'))


class Reviews:
    """The reviews of an API server: all tokens are valid, and all rights are granted in the namespace `red`."""

    def __init__(self) -> None:
        self.sent: list[Mapping[str, Any]] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, resource: Resource, body: Mapping[str, Any]) -> dict[str, Any]:
        self.sent.append(body)
        assert self.gate.wait(20)
        if resource == TOKEN_REVIEWS:
            if body["spec"]["token"] in FORGED:
                return {"status": {"authenticated": False}}
            if body["spec"]["token"] == "away":
                raise ApiProblem(0, "NoAnswer", "the connection was refused")
            return {"status": {"authenticated": True, "user": {"username": "u", "extra": {"a": ["b"]}}}}
        return {"status": {"allowed": body["spec"]["resourceAttributes"]["namespace"] == "red"}}


def authorizer(reviews: Reviews, clock: Clock | None = None) -> Authorizer:
    return Authorizer(reviews, audiences=(), seconds=30.0, clock=clock or Clock())


def test_strangers_cannot_queue_any_number_of_reviews() -> None:
    reviews = Reviews()
    reviews.gate.clear()

    async def ask() -> list[Any]:
        asked = authorizer(reviews)
        tasks = [asyncio.create_task(asked.user(f"invented-{number}")) for number in range(100)]
        await asyncio.sleep(0.05)
        early = [each for each in tasks if each.done()]
        reviews.gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        asked.stop()
        return early

    refused = asyncio.run(ask())
    assert len(refused) == 60
    problems = [each.exception() for each in refused]
    assert all(isinstance(each, Denied) and each.status == 503 for each in problems)
    assert len(reviews.sent) == 40


def test_requests_with_the_same_token_share_one_review() -> None:
    reviews = Reviews()
    reviews.gate.clear()

    async def ask() -> None:
        asked = authorizer(reviews)
        tasks = [asyncio.create_task(asked.may("t", Right.LIST, "red")) for _ in range(50)]
        await asyncio.sleep(0.05)
        # The first client leaves, and the review continues for the others.
        tasks[0].cancel()
        reviews.gate.set()
        found = await asyncio.gather(*tasks[1:])
        asked.stop()
        assert found == [True] * 49

    asyncio.run(ask())
    assert [each["kind"] for each in reviews.sent] == ["TokenReview", "SubjectAccessReview"]


def test_each_right_and_namespace_has_a_review_of_its_own() -> None:
    reviews = Reviews()

    async def ask() -> set[str]:
        asked = authorizer(reviews)
        for right in Right:
            assert await asked.may("t", right, "red")
            assert not await asked.may("t", right, "blue")
        found = await asked.namespaces("t", Right.LIST, {"red", "blue"})
        asked.stop()
        return found

    assert asyncio.run(ask()) == {"red"}
    about = [each["spec"]["resourceAttributes"] for each in reviews.sent[1:]]
    kinds = {
        (each["verb"], each["group"], each["resource"], each.get("subresource")) for each in about if each["namespace"]
    }
    assert kinds == {
        ("list", "mptraining.dev", "mptrainingjobs", None), ("get", "mptraining.dev", "mptrainingjobs", None),
        ("get", "", "pods", "log"), ("list", "", "pods", None), ("list", "", "events", None),
            ("list", "mptraining.dev", "mptrainingsweeps", None),
    }  # fmt: skip
    assert len(about) == 2 * len(Right) + 1
    assert reviews.sent[1]["spec"] | {"user": "u", "extra": {"a": ["b"]}} == reviews.sent[1]["spec"]


def token(**claims: Any) -> str:
    return encoded(json.dumps(claims))


@pytest.mark.parametrize(
    ("given", "after", "reviews_sent"),
    [(token(exp=1_010), 9.0, 1), (token(exp=1_010), 11.0, 2), (token(), 29.0, 1), ("opaque", 29.0, 1), ("o", 31.0, 2)],
)
def test_no_review_counts_beyond_the_expiry_of_its_token(given: str, after: float, reviews_sent: int) -> None:
    reviews, clock = Reviews(), Clock(1_000.0)

    async def ask() -> None:
        asked = authorizer(reviews, clock)
        await asked.user(given)
        clock.now += after
        await asked.user(given)
        asked.stop()

    asyncio.run(ask())
    assert len(reviews.sent) == reviews_sent


@pytest.mark.parametrize("given", FORGED)
def test_a_forged_token_is_refused_whatever_it_claims(given: str) -> None:
    reviews = Reviews()

    async def ask() -> None:
        asked = authorizer(reviews, Clock(1_000.0))
        for _ in range(2):
            with pytest.raises(Denied) as denied:
                await asked.user(given)
            assert denied.value.status == 401
        asked.stop()

    asyncio.run(ask())
    # Also the second time without another review, as its expiry says nothing.
    assert len(reviews.sent) == 1


@pytest.mark.parametrize("given", FORGED[:2])
def test_claims_that_are_no_time_are_no_expiry(given: str) -> None:
    assert token_expiry(given) is None


def test_a_stream_asks_again_for_a_refused_namespace_as_seldom_as_for_a_right() -> None:
    reviews, clock = Reviews(), Clock(1_000.0)
    asked = {"red", *(f"blue-{number}" for number in range(20))}

    async def ask() -> list[int]:
        authorize = authorizer(reviews, clock)
        sent = []
        for after in (0.0, 29.0, 2.0):
            clock.now += after
            assert await authorize.namespaces("t", Right.LIST, asked, patient=True) == {"red"}
            sent.append(len(reviews.sent))
        clock.now += REFUSED_SECONDS + 0.1
        # A request asks again, so that a role that was granted helps at once.
        await authorize.namespaces("t", Right.LIST, asked)
        authorize.stop()
        return [*sent, len(reviews.sent)]

    # The token, the right in all namespaces, and that in each.
    assert asyncio.run(ask()) == [23, 23, 46, 67]


def test_a_full_cache_loses_the_oldest_review_alone() -> None:
    reviewed: list[str] = []

    async def ask() -> None:
        cache = ReviewCache[bool](Clock(1_000.0), name="test", at_once=1, most_cached=3)

        async def get(token: str) -> None:
            await cache.get(token, "", lambda: not reviewed.append(token), lambda _: 2_000.0)

        for token in ("a", "b", "c", "d", "b", "c", "d", "a"):
            await get(token)
        cache.stop()
        assert len(cache) == 3

    asyncio.run(ask())
    assert reviewed == ["a", "b", "c", "d", "a"]


def test_a_review_that_fails_is_no_answer_and_is_not_cached() -> None:
    reviews = Reviews()

    async def ask() -> None:
        asked = authorizer(reviews)
        for _ in range(2):
            with pytest.raises(Denied) as denied:
                await asked.may("away", Right.LIST, "red")
            assert denied.value.status == 503
        asked.stop()

    asyncio.run(ask())
    assert len(reviews.sent) == 2


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"authorization": "Bearer a"}, "a"),
        ({"authorization": "bearer a", "x-forwarded-access-token": "b"}, "a"),
        ({"authorization": "Basic a", "x-forwarded-access-token": "b"}, "b"),
        ({"x-forwarded-access-token": " b "}, "b"),
        ({"authorization": "Bearer "}, ""),
        ({}, ""),
    ],
)
def test_the_token_of_a_request(headers: dict[str, str], expected: str) -> None:
    assert request_token(headers) == expected


@pytest.mark.parametrize(
    ("changed", "before", "now", "expected"),
    [
        ({"a", "b"}, None, None, ["a", "b"]),
        ({"a", "b"}, {"a"}, {"a"}, ["a"]),
        # A new one, a deleted one, and one to which the right has ended.
        ({"a"}, set(), {"a"}, ["a"]),
        ({"a"}, {"a"}, set(), ["a"]),
        (set(), {"a", "b"}, {"b"}, ["a"]),
        (set(), {"a"}, {"a"}, []),
    ],
)
def test_changes_that_a_stream_tells(
    changed: set[str], before: set[str] | None, now: set[str] | None, expected: list[str]
) -> None:
    assert visible_changes(changed, before, now) == expected


def test_a_stream_walks_the_jobs_once_for_each_version_of_the_board() -> None:
    class Jobs:
        version = 0
        walks = 0
        facts: Mapping[str, JobFacts] = MappingProxyType({})

        def jobs(self) -> Mapping[str, JobFacts]:
            self.walks += 1
            return self.facts

    board, reviews = Jobs(), Reviews()
    stream = Request(
        {"type": "http", "method": "GET", "path": "/api/live", "headers": [(b"authorization", b"Bearer t")]}
    )

    def add(id: str, namespace: str) -> None:
        board.facts = {**board.facts, id: JobFacts(namespace, id, "Running", "", None, None, None, {})}
        board.version += 1

    async def ask() -> list[frozenset[str]]:
        authorize = authorizer(reviews)
        rights = NamespaceRights(authorize, cast("Board", board), lambda: None)
        found = []
        for id, namespace in (("a", "red"), ("b", "blue"), ("c", "red")):
            add(id, namespace)
            found += [await rights.listed(stream) for _ in range(5)][-1:]
        authorize.stop()
        return found

    assert asyncio.run(ask()) == [{"a"}, {"a"}, {"a", "c"}]
    assert board.walks == 3

"""Whom the API server says a token is of, asked once and remembered for a while."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining_operator.progress.auth import REFUSED, REFUSED_SECONDS, Review, TokenReviewer, claimed, read_review
from mptraining_operator.resources import names
from tests.fakes import Clock

AUDIENCE = names.audience("team-a", "uid-1")


def token(*audiences: str, end: float | None = None, signature: str = "s") -> str:
    """As a projected token looks; nobody here checks its signature."""
    claims: dict[str, Any] = {"aud": list(audiences)}
    if end is not None:
        claims["exp"] = end
    part = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{part}.{signature}"


def accepted(*audiences: str, **user: Any) -> dict[str, Any]:
    extra = {
        "authentication.kubernetes.io/pod-name": ["flowers-1-0-abcde"],
        "authentication.kubernetes.io/pod-uid": ["pod-1"],
    }
    about = {"username": "system:serviceaccount:team-a:default", "extra": extra, **user}
    return {"authenticated": True, "audiences": list(audiences), "user": about}


REVIEW = Review(True, (AUDIENCE,), "team-a", "flowers-1-0-abcde", "pod-1")


class ApiServer:
    """Counts what it is asked."""

    def __init__(self, answer: Mapping[str, Any] | Exception) -> None:
        self.answer = answer
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    def __call__(self, token: str, audiences: tuple[str, ...]) -> Mapping[str, Any]:
        self.asked.append((token, audiences))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("status", "review"),
    [
        pytest.param(accepted(AUDIENCE), REVIEW, id="a worker's"),
        pytest.param(accepted(AUDIENCE, extra=None), Review(True, (AUDIENCE,), "team-a"), id="bound to no pod"),
        pytest.param({"error": "invalid bearer token"}, REFUSED, id="refused"),
        pytest.param({}, REFUSED, id="nothing said"),
        pytest.param({**accepted(AUDIENCE), "authenticated": False}, REFUSED, id="not authenticated"),
        pytest.param({**accepted(AUDIENCE), "authenticated": "true"}, REFUSED, id="no boolean"),
        pytest.param(accepted(), REFUSED, id="an authenticator that ignores audiences"),
        pytest.param(accepted("https://kubernetes.default.svc"), REFUSED, id="another audience than asked"),
        pytest.param(accepted(AUDIENCE, username="admin"), REFUSED, id="a person"),
        pytest.param(accepted(AUDIENCE, username="system:serviceaccount:team-a"), REFUSED, id="half an account"),
        pytest.param(accepted(AUDIENCE, username=None), REFUSED, id="nobody"),
    ],
)
def test_what_a_review_says(status: dict[str, Any], review: Review) -> None:
    assert read_review(status, (AUDIENCE,)) == review


@pytest.mark.parametrize(
    ("text", "audiences"),
    [
        (token(AUDIENCE), (AUDIENCE,)),
        (token(AUDIENCE, "https://kubernetes.default.svc"), (AUDIENCE,)),
        (token("https://kubernetes.default.svc"), ()),
        ("", ()),
        ("a.b", ()),
        ("a.?.c", ()),
        (f"a.{base64.urlsafe_b64encode(b'[1]').decode()}.c", ()),
        (f"a.{base64.urlsafe_b64encode(b'{}').decode()}.c", ()),
        (f"a.{base64.urlsafe_b64encode(b'[' * 5000).decode()}.c", ()),
        (token(AUDIENCE, signature="x" * 20_000), ()),
    ],
)
def test_what_a_token_claims(text: str, audiences: tuple[str, ...]) -> None:
    assert claimed(text)[0] == audiences


def test_a_single_audience_may_stand_alone() -> None:
    claims = base64.urlsafe_b64encode(json.dumps({"aud": AUDIENCE, "exp": 5}).encode()).decode()
    assert claimed(f"e30.{claims}.s") == ((AUDIENCE,), 5.0)


@given(st.text(max_size=50) | st.binary(max_size=80).map(lambda some: f"a.{base64.urlsafe_b64encode(some).decode()}.c"))
def test_no_text_is_too_strange_to_look_at(text: str) -> None:
    assert claimed(text)[0] == ()


def test_an_accepted_token_is_believed_for_a_while() -> None:
    server, clock = ApiServer(accepted(AUDIENCE)), Clock()
    reviewer = TokenReviewer(server, clock, 60)
    mine = token(AUDIENCE)
    assert reviewer.remembered(mine) is None
    assert [reviewer.identify(mine) for _ in range(3)] == [REVIEW] * 3
    assert server.asked == [(mine, (AUDIENCE,))]
    clock.now += 59
    assert reviewer.remembered(mine) == REVIEW
    clock.now += 1
    assert reviewer.remembered(mine) is None
    reviewer.identify(mine)
    assert len(server.asked) == 2


def test_no_token_is_believed_beyond_its_end() -> None:
    server, clock = ApiServer(accepted(AUDIENCE)), Clock()
    reviewer = TokenReviewer(server, clock, 60)
    mine = token(AUDIENCE, end=1010)
    reviewer.identify(mine)
    clock.now = 1009
    assert reviewer.remembered(mine) == REVIEW
    clock.now = 1010
    assert reviewer.remembered(mine) is None


def test_a_refusal_is_remembered_shortly() -> None:
    server, clock = ApiServer({"authenticated": False}), Clock()
    reviewer = TokenReviewer(server, clock, 60)
    mine = token(AUDIENCE)
    assert [reviewer.identify(mine) for _ in range(3)] == [REFUSED] * 3
    assert len(server.asked) == 1
    clock.now += REFUSED_SECONDS
    server.answer = accepted(AUDIENCE)
    assert reviewer.identify(mine) == REVIEW


def test_a_token_for_somebody_else_is_no_reason_to_ask() -> None:
    server = ApiServer(accepted(AUDIENCE))
    reviewer = TokenReviewer(server, Clock(), 60)
    assert reviewer.identify(token("https://kubernetes.default.svc")) == REFUSED
    assert reviewer.identify("opaque") == REFUSED
    assert server.asked == []


def test_a_claim_alone_grants_nothing() -> None:
    # The claimed audience was asked for, and the API server confirmed another one only.
    server = ApiServer(accepted(names.audience("team-a", "uid-2")))
    assert TokenReviewer(server, Clock(), 60).identify(token(AUDIENCE)) == REFUSED


def test_trouble_with_the_api_server_is_not_remembered() -> None:
    server = ApiServer(ConnectionError("refused"))
    reviewer = TokenReviewer(server, Clock(), 60)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            reviewer.identify(token(AUDIENCE))
    server.answer = accepted(AUDIENCE)
    assert reviewer.identify(token(AUDIENCE)) == REVIEW
    assert len(server.asked) == 3


def test_only_so_many_are_remembered() -> None:
    server = ApiServer(accepted(AUDIENCE))
    reviewer = TokenReviewer(server, Clock(), 60, most=2)
    tokens = [token(AUDIENCE, signature=str(number)) for number in range(3)]
    for each in tokens:
        reviewer.identify(each)
    assert [reviewer.remembered(each) is not None for each in tokens] == [False, True, True]


@pytest.mark.parametrize("trouble", [False, True])
def test_who_asks_at_the_same_time_shares_one_question(trouble: bool) -> None:
    asked, go = threading.Event(), threading.Event()
    count: list[str] = []

    def slow(token: str, audiences: tuple[str, ...]) -> Mapping[str, Any]:
        count.append(token)
        asked.set()
        assert go.wait(60)
        if trouble:
            raise ConnectionError
        return accepted(AUDIENCE)

    reviewer = TokenReviewer(slow, Clock(), 60)
    found: list[object] = []

    def ask() -> None:
        try:
            found.append(reviewer.identify(token(AUDIENCE)))
        except ConnectionError:
            found.append("trouble")

    threads = [threading.Thread(target=ask) for _ in range(5)]
    for each in threads:
        each.start()
    assert asked.wait(60)
    # Another token does not wait for this one.
    assert reviewer.remembered(token(AUDIENCE, signature="other")) is None
    go.set()
    for each in threads:
        each.join(60)
    assert found == ["trouble" if trouble else REVIEW] * 5
    # Who came after a failure asked anew.
    assert len(count) == 1 or trouble

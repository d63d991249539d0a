"""The pod of a token by TokenReview, cached; and the requirements for a report."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest

from mptraining_operator.progress import auth
from mptraining_operator.progress.auth import TokenReviewer, read_review

AUDIENCE = "mptraining.dev/team-a/uid-1"
UID = "authentication.kubernetes.io/pod-uid"


def token(*, end: float | None = None, signature: str = "s") -> str:
    """A token as the kubelet projects it; the reviewer does not check its signature."""
    claims = {"aud": [AUDIENCE]} | ({} if end is None else {"exp": end})
    part = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{part}.{signature}"


def accepted(**changes: Any) -> dict[str, Any]:
    user = {"username": "system:serviceaccount:team-a:default", "extra": {UID: ["pod-1"]}}
    return {"authenticated": True, "audiences": [AUDIENCE], "user": user, **changes}


class Reviewer:
    """A TokenReviewer whose API server gives `answer` and counts the reviews."""

    def __init__(self, answer: Mapping[str, Any] | Exception) -> None:
        self.answer = answer
        self.reviews: list[tuple[str, tuple[str, ...]]] = []
        self.now = 1000.0
        self._reviewer = TokenReviewer(self._review, lambda: self.now, 60)

    def _review(self, token: str, audiences: tuple[str, ...]) -> Mapping[str, Any]:
        self.reviews.append((token, audiences))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def pod_uid(self, token: str, audience: str = AUDIENCE) -> str:
        return asyncio.run(self._reviewer.pod_uid(token, audience))


@pytest.mark.parametrize(
    ("status", "uid"),
    [
        pytest.param(accepted(), "pod-1", id="a worker's"),
        pytest.param(accepted(user={"username": "admin"}), "", id="not bound to a pod"),
        pytest.param(accepted(user=None), "", id="no user"),
        pytest.param({"error": "invalid bearer token"}, "", id="rejected"),
        pytest.param({}, "", id="empty"),
        pytest.param(accepted(authenticated=False), "", id="not authenticated"),
        pytest.param(accepted(authenticated="true"), "", id="not a boolean"),
        pytest.param(accepted(audiences=None), "", id="an authenticator that ignores audiences"),
        pytest.param(accepted(audiences=["https://kubernetes.default.svc"]), "", id="for another audience"),
    ],
)
def test_the_pod_in_a_review(status: dict[str, Any], uid: str) -> None:
    assert read_review(status, AUDIENCE) == uid


def test_an_accepted_token_is_cached_for_a_minute_and_for_its_audience_alone() -> None:
    reviewer, mine = Reviewer(accepted()), token(end=5000)
    assert [reviewer.pod_uid(mine) for _ in range(3)] == ["pod-1"] * 3
    assert reviewer.reviews == [(mine, (AUDIENCE,))]
    assert reviewer.pod_uid(mine, "mptraining.dev/team-a/uid-2") == ""
    reviewer.now += 59
    reviewer.pod_uid(mine)
    assert len(reviewer.reviews) == 2
    reviewer.now += 1
    reviewer.pod_uid(mine)
    assert len(reviewer.reviews) == 3


@pytest.mark.parametrize("text", [token(end=1010), token(), "opaque", "a.?.c", "a.W10.c"])
def test_no_token_is_cached_beyond_its_expiry(text: str) -> None:
    reviewer = Reviewer(accepted())
    assert reviewer.pod_uid(text) == "pod-1"
    reviewer.now = 1010
    reviewer.answer = {"authenticated": False}
    assert reviewer.pod_uid(text) == ""


@pytest.mark.parametrize("first", [{"authenticated": False}, ConnectionError("refused")], ids=["rejected", "no answer"])
def test_a_failed_review_is_not_cached(first: Mapping[str, Any] | Exception) -> None:
    reviewer, mine = Reviewer(first), token(end=5000)
    if isinstance(first, Exception):
        with pytest.raises(ConnectionError):
            reviewer.pod_uid(mine)
    else:
        assert reviewer.pod_uid(mine) == ""
    reviewer.answer = accepted()
    assert reviewer.pod_uid(mine) == "pod-1"


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "_MOST_CACHED", 2)
    reviewer, tokens = Reviewer(accepted()), [token(end=5000, signature=str(number)) for number in range(3)]
    for each in (*tokens, tokens[2], tokens[0]):
        reviewer.pod_uid(each)
    assert [each for each, _ in reviewer.reviews] == [*tokens, tokens[0]]

"""Users of the board by TokenReview, and their rights by SubjectAccessReview; both are cached for a short time.

What cannot be reviewed is refused: without the API server the board shows nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from mptraining.board.access import Right
from mptraining.board.server import Denied
from mptraining_api.access.review_cache import ReviewCache, TooManyReviews
from mptraining_api.access.reviews import (
    ResourceAccess,
    User,
    accepted_user,
    access_review,
    bearer_token,
    is_allowed,
    token_expiry,
    token_review,
)
from mptraining_api.kubernetes_api import (
    JOBS,
    SUBJECT_ACCESS_REVIEWS,
    SWEEPS,
    TOKEN_REVIEWS,
    ApiProblem,
    Raw,
    Resource,
)

Result = TypeVar("Result")

_log = logging.getLogger(__name__)

# A refusal is cached for less time, since a missing role is usually granted soon.
REFUSED_SECONDS = 5.0
# Token reviews at the same time, and that wait for it: all that a client without a valid token can cause.
_TOKENS_AT_ONCE, _TOKENS_WAITING = 4, 40
# Reviews of rights: a user without rights on all namespaces causes one for each.
_RIGHTS_AT_ONCE, _RIGHTS_WAITING = 8, 2_000
_MOST_TOKENS, _MOST_RIGHTS = 1_000, 20_000
# oauth2-proxy sends the user's token in the first if it has an ID token to pass on, else an access token in the second.
AUTHORIZATION, FORWARDED = "authorization", "x-forwarded-access-token"

# Verb, resource and subresource of each right.
RIGHTS: Mapping[Right, tuple[str, str, str, str]] = {
    Right.LIST: ("list", JOBS.group, JOBS.plural, ""),
    Right.READ: ("get", JOBS.group, JOBS.plural, ""),
    # Program output in a run folder is what the log of the pods has.
    Right.OUTPUT: ("get", "", "pods", "log"),
    Right.PODS: ("list", "", "pods", ""),
    Right.EVENTS: ("list", "", "events", ""),
    Right.SWEEPS: ("list", SWEEPS.group, SWEEPS.plural, ""),
}

# Creates an object and returns it. Raises ApiProblem.
Create = Callable[[Resource, Mapping[str, Any]], Raw]


def request_token(headers: Mapping[str, str]) -> str:
    """Return the bearer token of a request; "" if it has none. `headers` is case-insensitive.

    Authorization comes first; one of another scheme, such as oauth2-proxy's Basic, has no token.
    """
    return bearer_token(headers.get(AUTHORIZATION)) or headers.get(FORWARDED, "").strip()


class Authorizer:
    """Reviews tokens and rights. For one event loop. Every method raises Denied if the token is not accepted.

    `clock` is in seconds since 1970, as the expiry of tokens is.
    """

    def __init__(
        self, create: Create, *, audiences: Collection[str], seconds: float, clock: Callable[[], float]
    ) -> None:
        self._create = create
        self._audiences = tuple(audiences)
        self._seconds = seconds
        self._clock = clock
        self._users = ReviewCache[User | None](
            clock, name="token", at_once=_TOKENS_AT_ONCE, most_cached=_MOST_TOKENS, most_waiting=_TOKENS_WAITING
        )
        self._rights = ReviewCache[bool](
            clock, name="right", at_once=_RIGHTS_AT_ONCE, most_cached=_MOST_RIGHTS, most_waiting=_RIGHTS_WAITING
        )

    def stop(self) -> None:
        self._users.stop()
        self._rights.stop()

    async def user(self, token: str) -> User:
        """Return the user of a token."""
        if not token:
            text = "no token: send Authorization: Bearer, or open the board through a proxy that signs you in"
            raise Denied(401, text, {"WWW-Authenticate": "Bearer"})

        def review() -> User | None:
            status = self._create(TOKEN_REVIEWS, token_review(token, self._audiences)).get("status") or {}
            return accepted_user(status, self._audiences)

        def until(found: User | None) -> float:
            return self._until(token, accepted=found is not None)

        found = await self._reviewed(self._users, token, "", review, until)
        if found is None:
            text = "the token is expired, forged, or not for this board: sign in again"
            raise Denied(401, text, {"WWW-Authenticate": 'Bearer error="invalid_token"'})
        return found

    async def may(self, token: str, right: Right, namespace: str, *, patient: bool = False) -> bool:
        """Return whether the token's user has the right in the namespace; in all namespaces if it is empty.

        With `patient` a refusal is believed for as long as a right.
        """
        user = await self.user(token)
        verb, group, resource, subresource = RIGHTS[right]
        access = ResourceAccess(verb, group, resource, namespace, subresource)

        def review() -> bool:
            created = self._create(SUBJECT_ACCESS_REVIEWS, access_review(user, access))
            return is_allowed(created.get("status") or {})

        def until(allowed: bool) -> float:
            return self._until(token, accepted=allowed)

        def longer(allowed: bool) -> float:
            return 0.0 if allowed or not patient else max(0.0, self._seconds - REFUSED_SECONDS)

        return await self._reviewed(self._rights, token, repr(access), review, until, longer)

    async def namespaces(self, token: str, right: Right, asked: Collection[str], *, patient: bool = False) -> set[str]:
        """Return those of the namespaces in which the token's user has the right. `patient` is that of `may`."""
        if await self.may(token, right, "", patient=patient):
            return set(asked)
        names = sorted(asked)
        allowed = await asyncio.gather(*(self.may(token, right, name, patient=patient) for name in names))
        return {name for name, each in zip(names, allowed, strict=True) if each}

    def _until(self, token: str, *, accepted: bool) -> float:
        now = self._clock()
        if not accepted:
            return now + min(self._seconds, REFUSED_SECONDS)
        expiry = token_expiry(token)
        return now + self._seconds if expiry is None else min(now + self._seconds, expiry)

    @staticmethod
    async def _reviewed(
        cache: ReviewCache[Result],
        token: str,
        scope: str,
        review: Callable[[], Result],
        until: Callable[[Result], float],
        longer: Callable[[Result], float] = lambda _: 0.0,
    ) -> Result:
        try:
            return await cache.get(token, scope, review, until, longer=longer)
        except TooManyReviews:
            raise _not_now("too many tokens are being reviewed") from None
        except ApiProblem as problem:
            _log.warning("a token or a right could not be reviewed: %s", problem)
            raise _not_now("the API server cannot confirm your rights now") from None


def _not_now(text: str) -> Denied:
    return Denied(503, f"{text}: try again later", {"Retry-After": "10"})

"""TokenReview of the API server as a value, and the meaning of its answer. Pure functions."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping
from typing import Any

# The user in the status of a TokenReview: username, uid, groups, extra.
User = Mapping[str, Any]


def bearer_token(authorization: str | None) -> str:
    """Return the token of an Authorization header; "" if it has none."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def token_expiry(token: str) -> float | None:
    """Return the expiry of a JSON Web Token in seconds since 1970; None if the text is none, or does not expire.

    The signature is not verified: only a TokenReview tells whether the token is valid.
    """
    try:
        return float(json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))["exp"])
    except (LookupError, TypeError, ValueError, OverflowError, RecursionError):
        # The last two: a number of hundreds of digits, and lists within lists, as a stranger may write them.
        return None


def token_review(token: str, audiences: Collection[str]) -> dict[str, Any]:
    """Return the TokenReview to create; without `audiences` the token must be for the API server itself."""
    spec = {"token": token, "audiences": list(audiences)}
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}


def accepted_user(status: Mapping[str, Any], audiences: Collection[str]) -> User | None:
    """Return the user in the `status` of a TokenReview; None if the token is not accepted for any of the audiences."""
    if status.get("authenticated") is not True:
        return None
    # Without `audiences` in the status the authenticator does not check them, and the token may be for any audience.
    if audiences and not set(audiences) & set(status.get("audiences") or ()):
        return None
    return status.get("user") or {}

"""TokenReview and SubjectAccessReview of the API server as values, and what their answers mean. Pure functions."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class ResourceAccess:
    """An access to objects of a kind in a namespace, or in all namespaces if it is empty."""

    verb: str
    group: str
    resource: str
    namespace: str
    subresource: str = ""

    def attributes(self) -> dict[str, Any]:
        named = {"verb": self.verb, "group": self.group, "resource": self.resource, "namespace": self.namespace}
        return {"resourceAttributes": named | ({"subresource": self.subresource} if self.subresource else {})}


@dataclass(frozen=True, slots=True)
class UrlAccess:
    """An access to a URL path that is no resource."""

    verb: str
    path: str

    def attributes(self) -> dict[str, Any]:
        return {"nonResourceAttributes": {"path": self.path, "verb": self.verb}}


def access_review(user: User, access: ResourceAccess | UrlAccess) -> dict[str, Any]:
    """Return the SubjectAccessReview to create."""
    spec = {"user": user.get("username", ""), **access.attributes()}
    spec |= {name: user[name] for name in ("uid", "groups", "extra") if user.get(name)}
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}


def is_allowed(status: Mapping[str, Any]) -> bool:
    """Return whether the `status` of a SubjectAccessReview allows the access."""
    return status.get("allowed") is True

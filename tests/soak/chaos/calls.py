"""Calls to an API server that is being broken: asked again until it answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from tests.testbed.kubernetes.rest import Object, Refused

_PATIENCE = 120.0
# What is over, or was done by a call whose answer was lost, is no reason to ask again.
_DONE = (404, 409)

Answer = TypeVar("Answer")


def insisted(call: Callable[[], Answer], *, seconds: float = _PATIENCE) -> Answer | None:
    """Its answer; None where the object has gone or is there already. Raises what it raised last."""
    until = time.monotonic() + seconds
    while True:
        try:
            return call()
        except Refused as refused:
            if refused.code in _DONE:
                return None
            # 401 and 403 too: authentication and RBAC answer late after a start.
            if time.monotonic() > until or refused.code in (400, 422):
                raise
        except OSError:
            if time.monotonic() > until:
                raise
        time.sleep(0.3)


def listed(call: Callable[[], Any]) -> list[Object]:
    """The items of a list."""
    found: list[Object] = (insisted(call) or {"items": []})["items"]
    return found

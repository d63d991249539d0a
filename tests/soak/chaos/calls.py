"""Calls to an API server under faults: retried until it responds."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from tests.testbed.kubernetes.rest import Object, Refused

_PATIENCE = 120.0
# These refusals mean that the object is gone or that a call without a response took effect: no reason to retry.
_DONE = (404, 409)

Answer = TypeVar("Answer")


def insisted(call: Callable[[], Answer], *, seconds: float = _PATIENCE) -> Answer | None:
    """Retry `call` and return its result; None if the object is gone or exists already. Raises its last error."""
    until = time.monotonic() + seconds
    while True:
        try:
            return call()
        except Refused as refused:
            if refused.code in _DONE:
                return None
            # 401 and 403 too: authentication and RBAC are ready late after a start.
            if time.monotonic() > until or refused.code in (400, 422):
                raise
        except OSError:
            if time.monotonic() > until:
                raise
        time.sleep(0.3)


def listed(call: Callable[[], Any]) -> list[Object]:
    """Return the items of a list."""
    found: list[Object] = (insisted(call) or {"items": []})["items"]
    return found


def awaited(look: Callable[[], Answer | None], what: str, *, seconds: float, logs: Callable[[], str]) -> Answer:
    """Call `look` until it returns something, whatever the API server answers. Raises TimeoutError with the logs."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with suppress(Refused, OSError):
            if answer := look():
                return answer
        time.sleep(0.2)
    raise TimeoutError(f"no {what} after {seconds:.0f} s\n{logs()[-3000:]}")

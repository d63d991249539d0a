"""The endpoints, and the conditions under which a replica is unhealthy."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest

from mptraining_operator.runtime.health import HealthServer


def ask(server: HealthServer, path: str) -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}")
    try:
        with urllib.request.urlopen(request, timeout=240) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_three_endpoints() -> None:
    causes: dict[str, str | None] = {"alive": None, "ready": "the first list is not complete"}
    server = HealthServer(
        0,
        metrics=lambda: b"up 1\n",
        alive=lambda: [cause for cause in (causes["alive"],) if cause],
        ready=lambda: [cause for cause in (causes["ready"],) if cause],
        host="127.0.0.1",
    )
    server.start()
    try:
        assert ask(server, "/healthz") == (200, "ok\n")
        assert ask(server, "/readyz") == (503, "the first list is not complete\n")
        assert ask(server, "/metrics") == (200, "up 1\n")
        causes.update(alive="stuck", ready=None)
        assert ask(server, "/healthz") == (503, "stuck\n")
        assert ask(server, "/readyz") == (200, "ok\n")
        assert ask(server, "/else")[0] == 404
        again = HealthServer(server.port, metrics=bytes, alive=list, ready=list, host="127.0.0.1")
        with pytest.raises(OSError, match="ddress already in use"):
            again.start()
    finally:
        server.stop()


def test_a_check_that_fails_is_a_cause() -> None:
    def broken() -> list[str]:
        raise KeyError("x")

    server = HealthServer(0, metrics=bytes, alive=broken, ready=list, host="127.0.0.1")
    server.start()
    try:
        assert ask(server, "/healthz") == (503, "a check failed: KeyError: 'x'\n")
    finally:
        server.stop()

"""HTTP server for /healthz, /readyz and /metrics, and the health checks.

Liveness means that no thread is stuck. It does not depend on the API server, whose outage a restart would lengthen, nor
on the length of the queue, a backlog: that is the metric mptraining_queue_age_seconds, with an alert.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web

from mptraining_operator.server_thread import ServerThread

# Returns the problem, or None.
Check = Callable[[], str | None]

# Seconds.
LOOP_SILENT = 30.0
WORK_STUCK = 120.0


def check_event_loop(seconds_since_tick: Callable[[], float]) -> Check:
    """Check that the event loop of the watch streams runs."""

    def check() -> str | None:
        seconds = seconds_since_tick()
        return f"the watch streams' event loop has not run for {seconds:.0f} s" if seconds > LOOP_SILENT else None

    return check


def check_workers(longest_work: Callable[[], tuple[object, float] | None], ended_workers: Callable[[], int]) -> Check:
    """Check that no worker has ended or makes no progress for too long."""

    def check() -> str | None:
        ended, work = ended_workers(), longest_work()
        if ended:
            return f"{ended} worker threads have ended"
        if work is not None and work[1] > WORK_STUCK:
            return f"a worker makes no progress with {work[0]} for {work[1]:.0f} s"
        return None

    return check


def check_condition(condition: Callable[[], bool], otherwise: str) -> Check:
    """Check that the condition is met; `otherwise` is the problem until then."""
    return lambda: None if condition() else otherwise


class HealthServer(ServerThread):
    """HTTP server of one replica."""

    def __init__(
        self,
        port: int,
        *,
        metrics: Callable[[], bytes],
        alive: Iterable[Check],
        ready: Iterable[Check],
        host: str = "",
    ) -> None:
        super().__init__("health endpoint", host, port)
        self._metrics = metrics
        self._alive_checks = tuple(alive)
        self._ready_checks = tuple(ready)

    def _application(self) -> web.Application:
        application = web.Application()
        application.router.add_get("/healthz", self._answer(self._alive_checks))
        application.router.add_get("/readyz", self._answer(self._ready_checks))
        application.router.add_get("/metrics", self._respond_metrics)
        return application

    def _answer(self, checks: tuple[Check, ...]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(_: web.Request) -> web.Response:
            causes = [cause for check in checks if (cause := _run_check(check))]
            return web.Response(status=503 if causes else 200, text="\n".join(causes or ["ok"]) + "\n")

        return answer

    async def _respond_metrics(self, _: web.Request) -> web.Response:
        # In a thread: counting thousands of jobs takes longer than a probe may wait.
        text = await asyncio.to_thread(self._metrics)
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


def _run_check(check: Check) -> str | None:
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - a check that raises is reported as a problem
        return f"a check failed: {type(error).__name__}: {error}"

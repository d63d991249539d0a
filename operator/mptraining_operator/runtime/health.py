"""HTTP server for /healthz, /readyz and /metrics, and the checks behind them.

Liveness means that no thread is stuck. It does not depend on the API server, whose outage a restart would lengthen, nor
on the length of the queue, a backlog: that is the metric mptraining_queue_age_seconds, with an alert.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from mptraining_operator.runtime.server_thread import ServerThread

# Returns the problems; none if all is well.
Check = Callable[[], list[str]]

# Seconds without a turn of an event loop after which it is stuck.
LOOP_SILENT = 30.0


class HealthServer(ServerThread):
    """HTTP server of one replica."""

    def __init__(
        self,
        port: int,
        *,
        metrics: Callable[[], bytes],
        alive: Check,
        ready: Check,
        host: str = "",
    ) -> None:
        super().__init__("health endpoint", host, port)
        self._metrics = metrics
        self._check_alive = alive
        self._check_ready = ready

    def _application(self) -> web.Application:
        application = web.Application()
        application.router.add_get("/healthz", self._answer(self._check_alive))
        application.router.add_get("/readyz", self._answer(self._check_ready))
        application.router.add_get("/metrics", self._respond_metrics)
        return application

    def _answer(self, check: Check) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(_: web.Request) -> web.Response:
            try:
                causes = check()
            except Exception as error:  # noqa: BLE001 - a check that raises is reported as a problem
                causes = [f"a check failed: {type(error).__name__}: {error}"]
            return web.Response(status=503 if causes else 200, text="\n".join(causes or ["ok"]) + "\n")

        return answer

    async def _respond_metrics(self, _: web.Request) -> web.Response:
        # In a thread: counting thousands of jobs takes longer than a probe may wait.
        text = await asyncio.to_thread(self._metrics)
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

"""HTTP server for /healthz, /readyz and /metrics, in a thread with its own event loop, and the checks behind them.

Liveness means that no thread is stuck. It does not depend on the API server, whose outage a restart would lengthen, nor
on the length of the queue, a backlog: that is the metric mptraining_queue_age_seconds, with an alert.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable

from aiohttp import web

_log = logging.getLogger(__name__)

# Returns the problems; none if all is well.
Check = Callable[[], list[str]]

# Seconds without a turn of an event loop after which it is stuck.
LOOP_SILENT = 30.0
_START_SECONDS = 10.0
_STOP_SECONDS = 5.0


class HealthServer:
    """HTTP server. Port 0 selects a free port; after `start`, `port` is the port in use."""

    def __init__(
        self,
        port: int,
        *,
        metrics: Callable[[], bytes],
        alive: Check,
        ready: Check,
        host: str = "",
    ) -> None:
        self.port = port
        self._host = host
        self._metrics = metrics
        self._alive = alive
        self._ready = ready
        self._started = threading.Event()
        self._problem: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)

    def start(self) -> None:
        """Start the server and wait until it listens. Raises OSError if the port is not available."""
        self._thread.start()
        if not self._started.wait(_START_SECONDS):
            raise OSError(f"port {self.port}: the health endpoint does not listen after {_START_SECONDS:g} s")
        if self._problem is not None:
            raise self._problem

    def stop(self) -> None:
        if self._loop is not None and self._stopping is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - `start` raises it, or it is logged
            if self._started.is_set():
                _log.exception("the health endpoint ended")
            self._problem = error
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        application = web.Application()
        application.router.add_get("/healthz", self._answer(self._alive))
        application.router.add_get("/readyz", self._answer(self._ready))
        application.router.add_get("/metrics", self._respond_metrics)
        runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, self._host or None, self.port)
        await site.start()
        if self.port == 0:
            self.port = int(runner.addresses[0][1])
        self._started.set()
        try:
            await self._stopping.wait()
        finally:
            await runner.cleanup()

    def _answer(self, check: Check) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(_: web.Request) -> web.Response:
            causes = _run_check(check)
            return web.Response(status=503 if causes else 200, text="\n".join(causes or ["ok"]) + "\n")

        return answer

    async def _respond_metrics(self, _: web.Request) -> web.Response:
        # In a thread: counting thousands of jobs takes longer than a probe may wait.
        text = await asyncio.to_thread(self._metrics)
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


def _run_check(check: Check) -> list[str]:
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - a check that raises is reported as a problem
        return [f"a check failed: {type(error).__name__}: {error}"]

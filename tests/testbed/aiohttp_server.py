"""An aiohttp server on a port of 127.0.0.1 that speaks TLS, in a thread of its own."""

from __future__ import annotations

import asyncio
import ssl
import threading
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from aiohttp import web

_LARGEST = 64 * 1024**2


class AiohttpServer(ABC):
    """A context manager; `port` is known when it has been entered."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._tls.load_cert_chain(certificate, key)
        self.application = web.Application(client_max_size=_LARGEST)
        self.application.router.add_route("*", "/{path:.*}", self.handle)
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    @abstractmethod
    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Respond to any request."""

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._started.wait(60):
            raise TimeoutError(f"{type(self).__name__} did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(10)

    async def _serve(self) -> None:
        self.loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        # Each follower of a log waits in a thread.
        self.loop.set_default_executor(ThreadPoolExecutor(100))
        runner = web.AppRunner(self.application, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self._tls).start()
        self.port = int(runner.addresses[0][1])
        self._started.set()
        await self._stopping.wait()
        # Aborted: TLS would wait for close_notify from clients that are not reading.
        for each in runner.server.connections if runner.server else ():
            if each.transport is not None:
                each.transport.abort()
        await runner.cleanup()

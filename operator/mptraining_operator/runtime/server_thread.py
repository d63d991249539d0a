"""HTTP server in a thread with its own event loop, so that it responds while kopf's loop is busy."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from contextlib import suppress

from aiohttp import web

_log = logging.getLogger(__name__)

# Seconds: for the head of a request, and for the requests in progress at the end.
_HEAD_SECONDS = 5.0
_STOP_SECONDS = 5.0


class ServerThread:
    """HTTP server. `host` empty: all addresses of the machine. `port` 0: a free one, which `start` assigns."""

    def __init__(self, name: str, host: str, port: int) -> None:
        self.port = port
        self._host = host
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Listen, and respond in the thread. Raises OSError if the port is not available."""
        self._listener = _listen(self._host, self.port)
        self.port = int(self._listener.getsockname()[1])
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    def stop(self) -> None:
        """Finish requests in progress for up to 5 s, then stop."""
        if self._thread.is_alive():
            with suppress(RuntimeError):  # The loop has just ended.
                self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(2 * _STOP_SECONDS)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except BaseException:  # noqa: BLE001 - the health check sees that the thread has ended
            _log.exception("the %s ended", self._thread.name)

    async def _serve(self) -> None:
        runner = web.AppRunner(
            self._application(),
            access_log=None,
            handle_signals=False,
            shutdown_timeout=_STOP_SECONDS,
            keepalive_timeout=_HEAD_SECONDS,
            # Seconds for which the body of a rejected request is discarded, so that the client can read the response.
            lingering_time=1.0,
        )
        await runner.setup()
        accepting = asyncio.create_task(self._accept(runner))
        accepting.add_done_callback(lambda _: self._stopping.set())
        await self._stopping.wait()
        accepting.cancel()
        await runner.cleanup()
        self._listener.close()
        with suppress(asyncio.CancelledError):
            await accepting

    def _application(self) -> web.Application:
        raise NotImplementedError

    async def _accept(self, runner: web.AppRunner) -> None:
        """Accept connections until cancelled."""
        await web.SockSite(runner, self._listener).start()
        await asyncio.Event().wait()


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, for both IPv4 and IPv6 if the machine supports it. Raises OSError."""
    if not host and socket.has_dualstack_ipv6():
        listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512)
    else:
        listener = socket.create_server((host, port), backlog=512)
    listener.setblocking(False)
    return listener

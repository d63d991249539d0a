"""A reverse proxy between a client and the API server that injects faults by rules.

It shows the API server's own certificate, since some clients send no token without TLS; the token is the client's.
Watches pass through as they come.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
from aiohttp import web

from tests.testbed.aiohttp_server import AiohttpServer
from tests.testbed.faults.rules import (
    Call,
    CutWatch,
    DelayAnswer,
    DropAfter,
    DropBefore,
    ExpireWatch,
    Fault,
    HideEvents,
    Refuse,
    Rule,
    read,
)

# These headers belong to one connection, not to the request: the proxy has a connection of its own on either side.
_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "content-length", "upgrade", "te", "trailer"}
_GONE = {
    "type": "ERROR",
    "object": {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": "Expired",
        "code": 410,
        "message": "too old resource version: 1 (2)",
    },
}


class FaultProxy(AiohttpServer):
    """A context manager; `url` is its address. Its methods may be called from any thread."""

    def __init__(self, server: str, *, authority: Path, certificate: Path, key: Path) -> None:
        """`certificate` and `key` are for 127.0.0.1, from an authority that the clients trust; `authority` is the API
        server's.
        """
        super().__init__(certificate, key)
        self._server = server
        self._upwards = ssl.create_default_context(cafile=str(authority))
        self.application.cleanup_ctx.append(self._connected)
        self._rules: list[Rule] = []
        self._watches: set[asyncio.Task[None]] = set()
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def add(
        self,
        fault: Fault,
        *,
        verb: str,
        resource: str | None = None,
        subresource: str | None = None,
        times: int | None = None,
    ) -> Rule:
        """Inject `fault` into calls with these properties; the first match decides."""
        rule = Rule(fault, verb, resource, subresource, times)
        with self._lock:
            self._rules.append(rule)
        return rule

    def cut_watches(self) -> None:
        """End the streams that are open now."""
        asyncio.run_coroutine_threadsafe(self._cut(), self.loop).result(60)

    # -- its thread ---------------------------------------------------------------------------------------------

    async def _connected(self, _: web.Application) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(ssl=self._upwards, limit=0, keepalive_timeout=30)
        patience = aiohttp.ClientTimeout(total=None, sock_connect=10)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False, timeout=patience) as self._session:
            yield
            await self._cut()

    async def _cut(self) -> None:
        watches = list(self._watches)
        for task in watches:
            task.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        call = read(request.method, request.path, watch=request.query.get("watch") in ("true", "1"))
        with self._lock:
            fault = next((rule.fault for rule in self._rules if rule.selects(call)), None)
        response = await self._answer(request, call, fault)
        return response if response is not None else _dropped(request)

    async def _answer(self, request: web.Request, call: Call, fault: Fault | None) -> web.StreamResponse | None:
        """Return the client's response; None to drop the connection."""
        if isinstance(fault, Refuse):
            return _refusal(fault)
        if isinstance(fault, DropBefore):
            return None
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _HOP}
        body = await request.read() if request.can_read_body else None
        try:
            async with self._session.request(
                request.method, f"{self._server}{request.raw_path}", data=body, headers=headers
            ) as answer:
                if isinstance(fault, DropAfter):
                    await answer.read()
                    return None
                if isinstance(fault, DelayAnswer):
                    await asyncio.sleep(fault.seconds)
                return await self._pass_on(request, answer, call, fault)
        except aiohttp.ClientConnectionError:
            return None  # a client gets this from a proxy whose API server is down

    async def _pass_on(
        self, request: web.Request, answer: aiohttp.ClientResponse, call: Call, fault: Fault | None
    ) -> web.StreamResponse:
        headers = {key: value for key, value in answer.headers.items() if key.lower() not in _HOP}
        if call.verb != "watch" or answer.status != 200:
            return web.Response(status=answer.status, body=await answer.read(), headers=headers)
        response = web.StreamResponse(status=200, headers=headers)
        await response.prepare(request)
        streaming = asyncio.ensure_future(_stream(answer, response, fault))
        self._watches.add(streaming)
        try:
            await streaming
        except asyncio.CancelledError:
            if not streaming.done():  # the client has disconnected
                streaming.cancel()
                raise
        except (ConnectionResetError, aiohttp.ClientError):
            pass  # one of the two has disconnected
        finally:
            self._watches.discard(streaming)
        return response


async def _stream(answer: aiohttp.ClientResponse, response: web.StreamResponse, fault: Fault | None) -> None:
    """Forward the stream as it arrives; with a fault for watches, event by event."""
    if not isinstance(fault, CutWatch | ExpireWatch | HideEvents):
        async for some in answer.content.iter_any():
            await response.write(some)
        return
    events, rest = 0, b""
    limit = fault.after_events if isinstance(fault, CutWatch | ExpireWatch) else None
    while limit is None or events < limit:
        some = await answer.content.readany()
        if not some:
            return
        *lines, rest = (rest + some).split(b"\n")
        for line in lines if limit is None else lines[: limit - events]:
            events += 1
            if not (isinstance(fault, HideEvents) and json.loads(line)["type"] == fault.type):
                await response.write(line + b"\n")
    if isinstance(fault, ExpireWatch):
        await response.write(json.dumps(_GONE).encode() + b"\n")


def _refusal(fault: Refuse) -> web.Response:
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "reason": fault.reason,
        "message": "the fault proxy says no",
        "code": fault.code,
    }
    headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
    return web.json_response(status, status=fault.code, headers=headers)


def _dropped(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()

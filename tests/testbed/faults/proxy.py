"""A reverse proxy between a client and the API server that injects faults by rules, and records every request.

It shows the API server's own certificate, since some clients send no token without TLS; the token is the client's.
Watches pass through as they come.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web

from tests.testbed.faults.rules import (
    Answered,
    Call,
    CutWatch,
    Delay,
    DelayAnswer,
    DropAfter,
    DropBefore,
    ExpireWatch,
    Fault,
    HideEvents,
    Refuse,
    Rule,
    When,
    call,
    matching,
)

# These headers belong to one connection, not to the request: the proxy has a connection of its own on either side.
_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "content-length", "upgrade", "te", "trailer"}
_LARGEST = 64 * 1024**2
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


class FaultProxy:
    """A context manager; `url` is its address. Its methods may be called from any thread."""

    def __init__(self, server: str, *, authority: Path, certificate: Path, key: Path) -> None:
        """`certificate` and `key` are for 127.0.0.1, from an authority that the clients trust; `authority` is the API
        server's.
        """
        self._server = server
        self._upwards = ssl.create_default_context(cafile=str(authority))
        self._downwards = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._downwards.load_cert_chain(certificate, key)
        self._rules: list[Rule] = []
        self._answered: list[Answered] = []
        self._watches: dict[asyncio.Task[object], Call] = {}
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._port = 0
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    def add(
        self,
        fault: Fault,
        *,
        verb: str | None = None,
        resource: str | None = None,
        subresource: str | None = None,
        name: str | None = None,
        when: When | None = None,
        times: int | None = None,
        skip: int = 0,
    ) -> Rule:
        """Inject `fault` into calls with these properties or that `when` accepts; the first match decides."""
        rule = Rule(fault, when or matching(verb, resource, subresource, name), times, skip)
        with self._lock:
            self._rules.append(rule)
        return rule

    def clear(self) -> None:
        """Remove all rules; keep the record of requests."""
        with self._lock:
            self._rules.clear()

    def cut_watches(self, resource: str | None = None) -> int:
        """End the streams that are open now, of one resource or all; return their number."""
        return asyncio.run_coroutine_threadsafe(self._cut(resource), self._loop).result(60)

    @property
    def requests(self) -> list[Answered]:
        """Return all requests that are over, in the order of their ends."""
        with self._lock:
            return list(self._answered)

    def count(
        self,
        verb: str | None = None,
        resource: str | None = None,
        subresource: str | None = None,
        name: str | None = None,
        code: int | None = None,
    ) -> int:
        """Count the requests that have these properties."""
        accepts = matching(verb, resource, subresource, name)
        return sum(accepts(each.call) and (code is None or each.code == code) for each in self.requests)

    # -- its thread ---------------------------------------------------------------------------------------------

    def start(self) -> Self:
        self._thread.start()
        if not self._started.wait(60):
            raise TimeoutError("the fault proxy did not start")
        return self

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        runner = self._loop.run_until_complete(self._open())
        self._started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._close(runner))
        self._loop.close()

    async def _open(self) -> web.AppRunner:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._upwards, limit=0, keepalive_timeout=30),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        )
        application = web.Application(client_max_size=_LARGEST)
        application.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self._downwards)
        await site.start()
        self._port = int(runner.addresses[0][1])
        return runner

    async def _close(self, runner: web.AppRunner) -> None:
        await self._cut(None)
        # Aborted: TLS would wait for close_notify from clients that are not reading.
        for each in runner.server.connections if runner.server else ():
            if each.transport is not None:
                each.transport.abort()
        await runner.cleanup()
        await self._session.close()
        await asyncio.sleep(0.05)

    async def _cut(self, resource: str | None) -> int:
        chosen = [task for task, call in self._watches.items() if resource in (None, call.resource)]
        for task in chosen:
            task.cancel()
        await asyncio.gather(*chosen, return_exceptions=True)
        return len(chosen)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        watch = request.query.get("watch") in ("true", "1")
        asked = call(request.method, request.path, watch)
        with self._lock:
            fault = next((rule.fault for rule in self._rules if rule.selects(asked)), None)
        began, code = time.monotonic(), 0
        try:
            response = await self._answer(request, asked, fault)
            code = response.status if response is not None else 0
        finally:
            with self._lock:
                self._answered.append(Answered(asked, code, began, time.monotonic(), fault))
        return response if response is not None else _dropped(request)

    async def _answer(self, request: web.Request, asked: Call, fault: Fault | None) -> web.StreamResponse | None:
        """Return the client's response; None to drop the connection."""
        if isinstance(fault, Refuse):
            return _refusal(fault)
        if isinstance(fault, DropBefore):
            return None
        if isinstance(fault, Delay):
            await asyncio.sleep(fault.seconds)
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
                return await self._pass_on(request, answer, asked, fault)
        except aiohttp.ClientConnectionError:
            return None  # a client gets this from a proxy whose API server is down

    async def _pass_on(
        self, request: web.Request, answer: aiohttp.ClientResponse, asked: Call, fault: Fault | None
    ) -> web.StreamResponse:
        headers = {key: value for key, value in answer.headers.items() if key.lower() not in _HOP}
        if asked.verb != "watch" or answer.status != 200:
            return web.Response(status=answer.status, body=await answer.read(), headers=headers)
        response = web.StreamResponse(status=200, headers=headers)
        await response.prepare(request)
        streaming = asyncio.ensure_future(_stream(answer, response, fault))
        self._watches[streaming] = asked
        try:
            await streaming
        except asyncio.CancelledError:
            if not streaming.done():  # the client has disconnected
                streaming.cancel()
                raise
        except (ConnectionResetError, aiohttp.ClientError):
            pass  # one of the two has disconnected
        finally:
            self._watches.pop(streaming, None)
        return response

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


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
        "message": fault.message,
        "code": fault.code,
    }
    headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
    return web.json_response(status, status=fault.code, headers=headers)


def _dropped(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()

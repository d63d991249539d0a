"""The board's web application (Starlette): pages, answers in JSON, and server-sent events for changes.

`serve` admits requests.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from jinja2 import Environment, FileSystemLoader
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mptraining.board import access, details, series
from mptraining.board.board import Board
from mptraining.runs.columns import Curves
from mptraining_api import run_folder
from mptraining_api.problems import Problem

FOLDER = Path(__file__).parent
# The path of the stream of changes.
LIVE = "/api/live"
# How often the stream of changes looks for one, and how often it sends a comment, so that a dead connection is found.
LIVE_SECONDS, COMMENT_SECONDS = 0.25, 15.0
LOG_BYTES, LOG_TAIL = 256 << 10, 64 << 10
MOST_PIXELS, MOST_RUNS, MOST_NAMES = 8192, 500, 100


T = TypeVar("T")


class JSONResponse(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


def environment() -> Environment:
    return Environment(loader=FileSystemLoader(FOLDER / "templates"), autoescape=True)


def version() -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("mptraining")
    except PackageNotFoundError:
        return "from a source tree"


def page(*, version: str) -> str:
    """Return the page's HTML."""
    return environment().get_template("board.html").render(version=version)


def pages(board: Board, stopping: Callable[[], bool]) -> ASGIApp:
    """Return the routes, for requests that were admitted."""
    answers = _Answers(board, stopping)
    routes = [
        Route("/", answers.page),
        Route("/api/runs", answers.runs),
        Route("/api/run/{id}", answers.run),
        Route("/api/sweeps", answers.sweeps),
        Route("/api/sweep/{id}", answers.sweep),
        Route("/api/series", answers.series),
        Route("/api/logs/{id}/{name}", answers.logs),
        Route("/api/job/{namespace}/{name}", answers.job),
        Route(LIVE, answers.live),
        Mount("/static", StaticFiles(directory=FOLDER / "static")),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _http_error, Problem: _problem})


def with_security_headers(app: ASGIApp) -> ASGIApp:
    """Return the application whose answers all have the headers of `access.headers`."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        static = scope["path"].startswith("/static/")

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in access.headers(static=static).items():
                    headers[name] = value
            await send(message)

        await app(scope, receive, with_headers)

    return guarded


def refuse(request: Request, reason: str) -> Response:
    """Return the answer to a request that is not admitted: JSON for the page's own requests, else a page."""
    if request.url.path.startswith("/api/"):
        return JSONResponse({"error": reason, "token": True}, 403)
    return HTMLResponse(environment().get_template("denied.html").render(reason=reason), 403)


def method_refused() -> Response:
    return JSONResponse({"error": "the board answers GET alone"}, 405, {"Allow": "GET"})


class _Answers:
    """The routes. What reads files runs in threads."""

    def __init__(self, board: Board, stopping: Callable[[], bool]) -> None:
        self._board = board
        self._stopping = stopping

    async def _compute(self, call: Callable[..., T], *arguments: object) -> T:
        """Run what reads files or computes in a thread, ahead of the board's own work."""

        def computed() -> T:
            with self._board.answering():
                return call(*arguments)

        return await run_in_threadpool(computed)

    async def page(self, _: Request) -> Response:
        return HTMLResponse(page(version=version()))

    async def runs(self, _: Request) -> Response:
        await run_in_threadpool(self._board.wait_until_read)
        return JSONResponse(await self._compute(self._board.runs))

    async def sweeps(self, _: Request) -> Response:
        await run_in_threadpool(self._board.wait_until_read)
        return JSONResponse(await self._compute(self._board.sweeps))

    async def sweep(self, request: Request) -> Response:
        id = request.path_params["id"]
        found = await self._compute(self._board.sweep, id)
        if found is None:
            raise HTTPException(404, f"no sweep {id}")
        return JSONResponse(found)

    async def run(self, request: Request) -> Response:
        id = request.path_params["id"]
        return JSONResponse(await self._compute(self._details, id))

    def _details(self, id: str) -> Any:
        facts = self._board.facts().get(id)
        if facts is None:
            raise HTTPException(404, f"no run {id}")
        return details.details(facts, self._board.reader(id), self._board.clock())

    async def series(self, request: Request) -> Response:
        query = request.query_params
        ids, names = query.getlist("run")[:MOST_RUNS], query.getlist("name")[:MOST_NAMES]
        x = next((axis for axis in series.AXES if axis == query.get("x", "step")), None)
        if x is None:
            raise HTTPException(400, f"x={query.get('x')}: expected step, epoch or seconds")
        if not names or not ids:
            raise HTTPException(400, "expected run=ID and name=SERIES")
        options: dict[str, Any] = {
            "pixels": int(_number(query.get("pixels"), "pixels", 1, MOST_PIXELS) or series.PIXELS),
            "begin": _number(query.get("from"), "from"),
            "end": _number(query.get("to"), "to"),
        }

        def answer() -> Any:
            curves = self._curves(ids)
            charts = [series.chart(name, x, curves, **options) for name in names]
            return charts[0] if len(charts) == 1 else {"charts": charts}

        return JSONResponse(await self._compute(answer))

    def _curves(self, ids: Collection[str]) -> dict[str, Curves]:
        found = {}
        for id in dict.fromkeys(ids):
            reader = self._board.reader(id)
            if reader is None:
                if id not in self._board.facts():
                    raise HTTPException(404, f"no run {id}")
                continue
            found[id] = reader.curves()
        return found

    async def logs(self, request: Request) -> Response:
        id, name = request.path_params["id"], request.path_params["name"]
        offset = int(_number(request.query_params.get("offset"), "offset", -1) or 0)
        return JSONResponse(await self._compute(self._log, id, name, offset))

    def _log(self, id: str, name: str, offset: int) -> Any:
        reader = self._board.reader(id)
        # The name must be one of the listing: no path that a request makes up is ever opened.
        file = reader.listed.get(f"{run_folder.LOGS}/{name}") if reader else None
        if reader is None or file is None:
            raise HTTPException(404, f"no log {name} of run {id}")
        start = max(0, file.size - LOG_TAIL) if offset < 0 else min(offset, file.size)
        if start >= file.size:
            return {"text": "", "offset": start, "end": True}
        data = reader.files.read(f"{run_folder.LOGS}/{name}", start, LOG_BYTES)
        data = _whole_characters(data)
        end = start + len(data)
        return {"text": data.decode("utf-8", errors="replace"), "offset": end, "end": end >= file.size}

    async def job(self, request: Request) -> Response:
        namespace, name = request.path_params["namespace"], request.path_params["name"]
        found = await self._compute(self._board.job, namespace, name)
        if found is None:
            raise HTTPException(404, f"no job {namespace}/{name} among those of the board")
        return JSONResponse(found)

    async def live(self, request: Request) -> Response:
        return StreamingResponse(self._changes(request), media_type="text/event-stream")

    async def _changes(self, request: Request) -> AsyncIterator[bytes]:
        version, silent = self._board.version, 0.0
        yield b": connected\n\n"
        while not await request.is_disconnected():
            if self._stopping():
                yield b"event: bye\ndata: {}\n\n"
                return
            if self._board.version > version:
                # Without a changed run, the problem of a source has changed.
                version, changed = self._board.changes_since(version)
                data = msgspec.json.encode({"changed": sorted(changed), "version": version})
                yield b"event: runs\ndata: " + data + b"\n\n"
                silent = 0.0
            if silent >= COMMENT_SECONDS:
                yield b": no change\n\n"
                silent = 0.0
            await asyncio.sleep(LIVE_SECONDS)
            silent += LIVE_SECONDS


def _whole_characters(data: bytes) -> bytes:
    """Cut a UTF-8 character that is torn at the end; its rest is in the next answer."""
    for length in range(1, min(4, len(data)) + 1):
        byte = data[-length]
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-length] if needed > length and len(data) > length else data
        if byte < 0x80:
            break
    return data


def _number(text: str | None, name: str, low: float = -math.inf, high: float = math.inf) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or not low <= value <= high:
        raise HTTPException(400, f"{name}={text}: expected a number" + (f" up to {high:g}" if high < math.inf else ""))
    return value


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)


async def _problem(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 502)

"""The board's web application (Starlette): pages, answers in JSON, server-sent events for changes, and who may ask."""

from __future__ import annotations

import asyncio
import codecs
import math
from collections.abc import AsyncIterator, Callable, Collection
from html import escape
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mptraining.board import access
from mptraining.board.state import Board
from mptraining.runs import series
from mptraining.runs.columns import Curves
from mptraining_api import run_folder
from mptraining_api.problems import Problem

FOLDER = Path(__file__).parent
# How often the stream of changes looks for one, and how often it sends a comment, so that a dead connection is found.
LIVE_SECONDS, COMMENT_SECONDS = 0.25, 15.0
LOG_BYTES, LOG_TAIL = 256 << 10, 64 << 10
MOST_PIXELS, MOST_RUNS, MOST_NAMES = 8192, 500, 100

T = TypeVar("T")


class JSONResponse(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


def page() -> str:
    return _template("board.html", version=_version())


def _template(name: str, **values: str) -> str:
    text = (FOLDER / "templates" / name).read_text(encoding="utf-8")
    for key, value in values.items():
        text = text.replace(f"{{{{ {key} }}}}", escape(value))
    return text


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("mptraining")
    except PackageNotFoundError:
        return "from a source tree"


def application(
    board: Board,
    *,
    token: str,
    port: int,
    once: access.OneTimeToken | None = None,
    hosts: Collection[str] = (),
    stopping: Callable[[], bool] = lambda: False,
) -> ASGIApp:
    """Return a user's own board. `hosts` are further allowed names; streams end when `stopping` returns True.

    The first address has `token`, or `once`.
    """
    answers = _Answers(board, stopping)
    routes = [
        Route("/", answers.page),
        Route("/api/runs", answers.of(board.runs)),
        Route("/api/run/{id}", answers.of(board.run)),
        Route("/api/job/{id}", answers.of(board.job)),
        Route("/api/sweeps", answers.of(board.sweeps)),
        Route("/api/sweep/{id}", answers.of(board.sweep)),
        Route("/api/importance/{id}", answers.of(board.importance)),
        Route("/api/series", answers.series),
        Route("/api/logs/{id}/{name}", answers.logs),
        Route("/api/live", answers.live),
        Mount("/static", StaticFiles(directory=FOLDER / "static")),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _http_error, Problem: _problem})
    return _Guard(app, token=token, once=once, cookie=access.cookie_name(port), hosts=hosts)


class _Guard:
    """Checks host, token and method of every request before any route sees it; all answers have `access.headers`."""

    def __init__(
        self, app: ASGIApp, *, token: str, once: access.OneTimeToken | None, cookie: str, hosts: Collection[str]
    ) -> None:
        self._app = app
        self._token = token
        self._once = once
        self._cookie = cookie
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        static = scope["path"].startswith("/static/")

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(access.headers(static=static))
            await send(message)

        await self._answer(Request(scope))(scope, receive, with_headers)

    def _answer(self, request: Request) -> ASGIApp:
        if not access.is_allowed_host(request.headers.get("host", ""), self._hosts):
            return _refuse(request, access.WRONG_HOST)
        given = request.query_params.get("token")
        if request.method == "GET" and request.url.path == "/" and given is not None:
            if not access.is_token(given, self._token) and not (self._once and self._once.take(given)):
                return _refuse(request, access.NO_TOKEN)
            response = RedirectResponse("/", status_code=303)
            # Not Strict: a browser would not send it after this redirect if a web terminal had the link.
            response.set_cookie(self._cookie, self._token, httponly=True, samesite="lax", path="/")
            return response
        if not access.is_token(request.cookies.get(self._cookie), self._token):
            return _refuse(request, access.NO_TOKEN)
        if request.method != "GET":
            return JSONResponse({"error": "the board answers GET alone"}, 405, {"Allow": "GET"})
        return self._app


def _refuse(request: Request, reason: str) -> Response:
    """Return the answer to a request that is not admitted: JSON for the page's own requests, else a page."""
    if request.url.path.startswith("/api/"):
        return JSONResponse({"error": reason, "token": True}, 403)
    return HTMLResponse(_template("denied.html", reason=reason), 403)


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
        return HTMLResponse(await self._compute(page))

    def of(self, answer: Callable[..., Any]) -> Callable[[Request], Any]:
        """Return the route for an answer of the board, which takes the path's parameters."""

        async def route(request: Request) -> Response:
            await run_in_threadpool(self._board.wait_until_read)
            content = await self._compute(answer, *request.path_params.values())
            if content is None:
                raise HTTPException(404, f"{request.url.path}: the board has no such run, job or sweep")
            return JSONResponse(content)

        return route

    async def series(self, request: Request) -> Response:
        query = request.query_params
        runs, names = query.getlist("run")[:MOST_RUNS], query.getlist("name")[:MOST_NAMES]
        x = next((axis for axis in series.AXES if axis == query.get("x", "step")), None)
        if x is None:
            raise HTTPException(400, f"x={query.get('x')}: expected step, epoch or seconds")
        if not names or not runs:
            raise HTTPException(400, "expected run=ID and name=SERIES")
        options: dict[str, Any] = {
            "pixels": int(_number(request, "pixels", 1, MOST_PIXELS) or series.PIXELS),
            "begin": _number(request, "from"),
            "end": _number(request, "to"),
        }

        def answer() -> Any:
            curves = self._curves(runs)
            return {"charts": [series.chart(name, x, curves, **options) for name in names]}

        return JSONResponse(await self._compute(answer))

    def _curves(self, runs: Collection[str]) -> dict[str, Curves]:
        readers = {run: self._board.reader(run) for run in dict.fromkeys(runs)}
        unknown = [run for run, reader in readers.items() if reader is None]
        if unknown and unknown[0] not in self._board.facts():
            raise HTTPException(404, f"no run {unknown[0]}")
        return {run: reader.curves() for run, reader in readers.items() if reader is not None}

    async def logs(self, request: Request) -> Response:
        offset = int(_number(request, "offset", -1) or 0)
        return JSONResponse(await self._compute(self._log, *request.path_params.values(), offset))

    def _log(self, run: str, name: str, offset: int) -> Any:
        reader = self._board.reader(run)
        path = f"{run_folder.LOGS}/{name}"
        # The name must be one of the listing: no path that a request makes up is ever opened.
        file = reader.listed.get(path) if reader else None
        if reader is None or file is None:
            raise HTTPException(404, f"no log {name} of run {run}")
        start = max(0, file.size - LOG_TAIL) if offset < 0 else min(offset, file.size)
        data = reader.files.read(path, start, LOG_BYTES) if start < file.size else b""
        # A character that is torn at the end is in the next answer.
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(data)
        end = start + len(data) - len(decoder.getstate()[0])
        return {"text": text, "offset": end, "end": end >= file.size}

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
                # If no run has changed, the problem of a source has.
                version, changed = self._board.changes_since(version)
                data = msgspec.json.encode({"changed": changed, "version": version})
                yield b"event: runs\ndata: " + data + b"\n\n"
                silent = 0.0
            if silent >= COMMENT_SECONDS:
                yield b": no change\n\n"
                silent = 0.0
            await asyncio.sleep(LIVE_SECONDS)
            silent += LIVE_SECONDS


def _number(request: Request, name: str, low: float = -math.inf, high: float = math.inf) -> float | None:
    text = request.query_params.get(name)
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

"""The board's web application (Starlette): pages, answers in JSON, and server-sent events for changes.

What admits requests is elsewhere: `serve` for a user's own board, `in_cluster.application` for that of a cluster.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

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
from mptraining.board.access import Right
from mptraining.board.board import Board
from mptraining.board.curves import Curves
from mptraining_api import run_folder
from mptraining_api.problems import Problem

FOLDER = Path(__file__).parent
# The path of the stream of changes.
LIVE = "/api/live"
# How often the stream of changes looks for one, and how often it sends a comment, so that a dead connection is found.
LIVE_SECONDS, COMMENT_SECONDS = 0.25, 15.0
# How often a stream asks what its user may see.
CHECK_SECONDS = 1.0
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


def page(*, version: str, sweeps: bool = True) -> str:
    """Return the page's HTML; `sweeps` is whether it leads to the sweeps."""
    return environment().get_template("board.html").render(version=version, sweeps=sweeps)


class Denied(Exception):
    """A request without the right to its answer: 401, 403, 429, or 503 if that cannot be found out now."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers or {}


class Permissions(Protocol):
    """What the user of a request may see. Every method raises Denied if the user is not known (any more)."""

    async def listed(self, request: Request) -> Collection[str] | None:
        """Return the identifiers of the runs that the user may list; None for all."""

    async def may_read(self, request: Request, id: str, right: Right) -> bool:
        """Return whether the user has the right in the namespace of that run."""

    async def may(self, request: Request, namespace: str, right: Right) -> bool:
        """Return whether the user has the right in the namespace."""


def pages(board: Board, permissions: Permissions, stopping: Callable[[], bool]) -> ASGIApp:
    """Return the routes, for requests that were admitted."""
    answers = _Answers(board, permissions, stopping)
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
    return Starlette(routes=routes, exception_handlers={HTTPException: _http_error, Problem: _problem, Denied: _denied})


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


def refuse(request: Request, denied: Denied, *, token_in_address: bool = False) -> Response:
    """Return the answer to a request that is not admitted: JSON for the page's own requests, else a page."""
    token_refused = token_in_address or denied.status == 401
    if request.url.path.startswith("/api/"):
        body: dict[str, Any] = {"error": str(denied)} | ({"token": True} if token_refused else {})
        return JSONResponse(body, denied.status, denied.headers)
    page = environment().get_template("denied.html")
    text = page.render(reason=str(denied), token_in_address=token_in_address)
    return HTMLResponse(text, denied.status, denied.headers)


def method_refused() -> Response:
    return JSONResponse({"error": "the board answers GET alone"}, 405, {"Allow": "GET"})


class _Answers:
    """The routes. What reads files runs in threads."""

    def __init__(self, board: Board, permissions: Permissions, stopping: Callable[[], bool]) -> None:
        self._board = board
        self._permissions = permissions
        self._stopping = stopping

    async def _compute(self, call: Callable[..., T], *arguments: object) -> T:
        """Run what reads files or computes in a thread, ahead of the board's own work."""

        def computed() -> T:
            with self._board.answering():
                return call(*arguments)

        return await run_in_threadpool(computed)

    async def page(self, _: Request) -> Response:
        return HTMLResponse(page(version=version(), sweeps=self._board.shows_sweeps))

    async def runs(self, request: Request) -> Response:
        await run_in_threadpool(self._board.wait_until_read)
        listed = await self._permissions.listed(request)
        return JSONResponse(await self._compute(self._board.runs, listed))

    async def sweeps(self, request: Request) -> Response:
        await run_in_threadpool(self._board.wait_until_read)
        return JSONResponse(await self._compute(self._board.sweeps, await self._listed_sweeps(request)))

    async def sweep(self, request: Request) -> Response:
        id = request.path_params["id"]
        found = None
        if id in await self._listed_sweeps(request):
            found = await self._compute(self._board.sweep, id, await self._permissions.listed(request))
        if found is None:
            raise HTTPException(404, f"no sweep {id}")
        return JSONResponse(found)

    async def _listed_sweeps(self, request: Request) -> frozenset[str]:
        """Return the identifiers of the sweeps that the user may list. A sweep in a folder has no namespace."""
        shown = {id: each.namespace or "" for id, each in self._board.shown_sweeps().items()}
        asked = sorted(set(shown.values()))
        allowed = {each for each in asked if await self._permissions.may(request, each, Right.SWEEPS)}
        return frozenset(id for id, namespace in shown.items() if namespace in allowed)

    async def run(self, request: Request) -> Response:
        id = request.path_params["id"]
        await self._require(request, id)
        found = await self._compute(self._details, id)
        if not await self._permissions.may_read(request, id, Right.OUTPUT):
            found["logs"] = []
        return JSONResponse(found)

    async def _require(self, request: Request, id: str) -> None:
        """Raise the error of an unknown run also if the user may not read it, which would reveal that it exists."""
        if not await self._permissions.may_read(request, id, Right.READ):
            raise HTTPException(404, f"no run {id}")

    def _details(self, id: str) -> Any:
        facts = self._board.facts().get(id)
        if facts is None:
            raise HTTPException(404, f"no run {id}")
        return details.details(facts, self._board.reader(id), self._board.clock())

    async def series(self, request: Request) -> Response:
        query = request.query_params
        ids, names = query.getlist("run")[:MOST_RUNS], query.getlist("name")[:MOST_NAMES]
        x = query.get("x", "step")
        if x not in ("step", "epoch", "seconds"):
            raise HTTPException(400, f"x={x}: expected step, epoch or seconds")
        if not names or not ids:
            raise HTTPException(400, "expected run=ID and name=SERIES")
        for id in dict.fromkeys(ids):
            await self._require(request, id)
        options: dict[str, Any] = {
            "pixels": int(_number(query.get("pixels"), "pixels", 1, MOST_PIXELS) or 800),
            "begin": _number(query.get("from"), "from"),
            "end": _number(query.get("to"), "to"),
            "smooth": _number(query.get("smooth"), "smooth", 0.0, 0.999) or 0.0,
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
        await self._require(request, id)
        if not await self._permissions.may_read(request, id, Right.OUTPUT):
            raise Denied(403, "you may not get pods/log in the namespace of this job")
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
        if not await self._permissions.may(request, namespace, Right.READ):
            raise Denied(403, f"you may not get mptrainingjobs in namespace {namespace}")
        found = await self._compute(self._board.job, namespace, name)
        if found is None:
            raise HTTPException(404, f"no job {namespace}/{name} among those of the board")
        found["hidden"] = [
            each for each in (Right.PODS, Right.EVENTS) if not await self._permissions.may(request, namespace, each)
        ]
        return JSONResponse(found | {each: [] for each in found["hidden"]})

    async def live(self, request: Request) -> Response:
        # Here a refusal still has a status.
        listed = await self._permissions.listed(request)
        return StreamingResponse(self._changes(request, listed), media_type="text/event-stream")

    async def _changes(self, request: Request, listed: Collection[str] | None) -> AsyncIterator[bytes]:
        """Yield the stream; it ends with `denied` when the user's rights are not confirmed any more."""
        version, silent, unchecked = self._board.version, 0.0, 0.0
        yield b": connected\n\n"
        while not await request.is_disconnected():
            if self._stopping():
                yield b"event: bye\ndata: {}\n\n"
                return
            if unchecked >= CHECK_SECONDS or self._board.version > version:
                unchecked, before, known = 0.0, listed, version
                try:
                    listed = await self._permissions.listed(request)
                except Denied as denied:
                    yield b"event: denied\ndata: " + msgspec.json.encode({"error": str(denied)}) + b"\n\n"
                    return
                version, changed = self._board.changes_since(known)
                changed = visible_changes(changed, before, listed)
                # Without a changed run, the problem of a source has changed.
                if changed or (listed is None and version > known):
                    data = msgspec.json.encode({"changed": changed, "version": version})
                    yield b"event: runs\ndata: " + data + b"\n\n"
                    silent = 0.0
            if silent >= COMMENT_SECONDS:
                yield b": no change\n\n"
                silent = 0.0
            await asyncio.sleep(LIVE_SECONDS)
            silent += LIVE_SECONDS
            unchecked += LIVE_SECONDS


def visible_changes(changed: Collection[str], before: Collection[str] | None, now: Collection[str] | None) -> list[str]:
    """Return those of the changed runs that the user may or might list, and those for which that has changed.

    `before` and `now` are the identifiers that the user may list, None for all.
    """
    if before is None or now is None:
        return sorted(changed)
    return sorted((set(changed) & (set(before) | set(now))) | (set(before) ^ set(now)))


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


async def _denied(request: Request, error: Exception) -> Response:
    assert isinstance(error, Denied)
    return refuse(request, error)

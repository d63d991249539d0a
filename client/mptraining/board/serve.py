"""A user's own board: a token for every address, and uvicorn on one port until Ctrl-C, which ends it at once."""

from __future__ import annotations

import secrets
import signal
import socket
from collections.abc import Callable, Collection
from types import FrameType

import uvicorn
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from mptraining.board import access
from mptraining.board.board import Board
from mptraining.board.server import method_refused, pages, refuse, with_security_headers
from mptraining_api.problems import InvalidSpec

# 8888 is Jupyter's, 6006 TensorBoard's.
PORT = 8666
_NEXT_PORTS = 20
# A stream notices the end within LIVE_SECONDS; an answer that takes longer is cut off.
STOP_SECONDS = 2


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
    inner = pages(board, stopping)
    return with_security_headers(_Guard(inner, token=token, once=once, cookie=access.cookie_name(port), hosts=hosts))


class _Guard:
    """Checks host, token and method of every request before any route sees it."""

    def __init__(
        self, app: ASGIApp, *, token: str, once: access.OneTimeToken | None, cookie: str, hosts: Collection[str]
    ) -> None:
        self._app = app
        self._token = token
        self._once = once
        self._cookie = cookie
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answer(Request(scope))(scope, receive, send)

    def _answer(self, request: Request) -> ASGIApp:
        if not access.is_allowed_host(Headers(scope=request.scope).get("host", ""), self._hosts):
            return refuse(request, access.WRONG_HOST)
        given = request.query_params.get("token")
        if request.method == "GET" and request.url.path == "/" and given is not None:
            if not access.is_token(given, self._token) and not (self._once and self._once.take(given)):
                return refuse(request, access.NO_TOKEN)
            response = RedirectResponse("/", status_code=303)
            response.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
            return response
        if not access.is_token(request.cookies.get(self._cookie), self._token):
            return refuse(request, access.NO_TOKEN)
        return self._app if request.method == "GET" else method_refused()


class BoardServer(uvicorn.Server):
    """Ends its streams when a signal arrives; the signal itself is the normal end and is not raised again."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        del frame
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def bind(host: str, port: int | None) -> socket.socket:
    """Return a listening socket; without `port` the first free one from `PORT` on. Raises InvalidSpec."""
    ports = [port] if port is not None else [*range(PORT, PORT + _NEXT_PORTS), 0]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for each in ports:
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, each))
            listening.listen(128)
        except OSError as error:
            listening.close()
            if each == ports[-1]:
                step = "Give another --port" if port is not None else "Give another --host"
                raise InvalidSpec(f"{host}:{each}", error.strerror or str(error), next_step=step) from None
        else:
            return listening
    raise AssertionError("unreachable: the loop returns or raises")


def url(host: str, port: int, token: str) -> str:
    """Return the address to open; a board on all interfaces is opened on this machine by its loopback address."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/?token={token}"


def server_for(
    board: Board, listening: socket.socket, *, host: str, token: str, once: access.OneTimeToken | None = None
) -> uvicorn.Server:
    """Return the server of a board, which `run` serves on the socket and `should_exit` ends."""
    names = set() if access.is_loopback(host) else {host, socket.gethostname()}
    server: BoardServer

    def stopping() -> bool:
        return server.should_exit

    port = int(listening.getsockname()[1])
    app = application(board, token=token, once=once, port=port, hosts=names, stopping=stopping)
    config = uvicorn.Config(
        app, log_level="error", lifespan="off", timeout_graceful_shutdown=STOP_SECONDS, server_header=False
    )
    server = BoardServer(config)
    return server


def serve(board: Board, listening: socket.socket, *, host: str, ready: Callable[[str, str], None]) -> None:
    """Serve the board until SIGINT or SIGTERM.

    As soon as it can be opened `ready` gets its URL, and another one that can be opened once.
    """
    token, once = secrets.token_urlsafe(24), access.OneTimeToken(secrets.token_urlsafe(24))
    server = server_for(board, listening, host=host, token=token, once=once)
    port = int(listening.getsockname()[1])
    board.start()
    try:
        ready(url(host, port, token), url(host, port, once.token))
        server.run(sockets=[listening])
    finally:
        board.stop()
        listening.close()

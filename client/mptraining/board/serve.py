"""A user's own board on one port: uvicorn until Ctrl-C, which ends it at once."""

from __future__ import annotations

import secrets
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from mptraining.board import access
from mptraining.board.server import application
from mptraining.board.state import Board
from mptraining_api.problems import InvalidSpec

# 8888 is Jupyter's, 6006 TensorBoard's.
PORT = 8666
_NEXT_PORTS = 20
# A stream notices the end within LIVE_SECONDS; an answer that takes longer is cut off.
STOP_SECONDS = 2


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
    for number in ports:
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, number))
            listening.listen(128)
        except OSError as error:
            listening.close()
            if number == ports[-1]:
                step = "Give another --port" if port is not None else "Give another --host"
                raise InvalidSpec(f"{host}:{number}", error.strerror or str(error), next_step=step) from None
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

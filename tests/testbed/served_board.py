"""A served board on a socket of its own, and a client that speaks HTTP to it as a browser would."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

from mptraining.board import access, serve
from mptraining.board.sources import folder_source
from mptraining.board.state import Board

TOKEN = "the-right-token"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Message
    body: bytes


@dataclass(frozen=True)
class Served:
    """A running board. `get` asks with the cookie that a browser has after its first visit."""

    port: int
    stop: Callable[[], None]

    @property
    def address(self) -> str:
        """The URL that `mptj board` prints."""
        return serve.url("127.0.0.1", self.port, TOKEN)

    @property
    def headers(self) -> dict[str, str]:
        return {"Cookie": f"{access.cookie_name(self.port)}={TOKEN}"}

    def request(self, path: str, *, method: str = "GET", headers: dict[str, str] | None = None) -> Answer:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)) as connection:
            connection.request(method, path, headers=self.headers if headers is None else headers)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())

    def get(self, path: str) -> Any:
        answer = self.request(path)
        assert answer.status == 200, answer.body
        return json.loads(answer.body)


def start_board(*folders: Path | str, port: int = 0) -> Served:
    """Serve the runs below the folders, on a given port or a free one, until `stop` is called."""
    board = Board([folder_source(str(folder)) for folder in folders])
    listening = serve.bind("127.0.0.1", port)
    server = serve.server_for(board, listening, host="127.0.0.1", token=TOKEN)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    board.start()
    thread.start()

    def stop() -> None:
        server.should_exit = True
        thread.join(10)
        board.stop()
        listening.close()
        assert not thread.is_alive()

    return Served(listening.getsockname()[1], stop)


@contextmanager
def served(*folders: Path | str) -> Iterator[Served]:
    """Serve the runs below the folders."""
    started = start_board(*folders)
    try:
        yield started
    finally:
        started.stop()

"""The process of the board in a cluster: connection, sources, and uvicorn until SIGTERM, with TLS or behind a proxy."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import uvicorn
from anyio.to_thread import current_default_thread_limiter

from mptraining.board.board import Board
from mptraining.board.in_cluster.application import MOST_STREAMS, application
from mptraining.board.in_cluster.authorizer import Authorizer
from mptraining.board.in_cluster.jobs import NamespacedJobs
from mptraining.board.in_cluster.run_folders import FolderOwners
from mptraining.board.in_cluster.settings import BoardSettings
from mptraining.board.serve import STOP_SECONDS, BoardServer
from mptraining.cluster.api import ApiServer
from mptraining_api.kubernetes_api import Raw, Resource, send
from mptraining_api.problems import InvalidSpec

_log = logging.getLogger(__name__)

# Connections at the same time; further ones are answered 503, /healthz included. So this is far above the streams that
# the application admits: open pages of users do not let the kubelet restart the board.
_MOST_CONNECTIONS = 4 * MOST_STREAMS
# How often it is looked whether the certificate was renewed: the kubelet takes a minute to bring a new one.
_CERTIFICATE_SECONDS = 60.0
_FILES = ("tls.crt", "tls.key")


# Answers at the same time that read files or compute: their memory is bounded with that of one run.
_ANSWERS_AT_ONCE = 8


class _Server(BoardServer):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        current_default_thread_limiter().total_tokens = _ANSWERS_AT_ONCE
        await super().startup(sockets)


def listen(port: int, host: str = "") -> socket.socket:
    """Return a listening socket, without `host` on all addresses of the pod. Raises InvalidSpec."""
    try:
        if not host and socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server((host, port))
    except OSError as error:
        raise InvalidSpec("port", f"{port}: {error.strerror or error}") from None


class Certificate:
    """A certificate and its key in a folder, such as a mounted Secret, which is read again when it was renewed."""

    def __init__(self, folder: Path) -> None:
        """Raises InvalidSpec if they cannot be used."""
        self._certificate, self._key = (folder / name for name in _FILES)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            self._content = self._read()
            self.context.load_cert_chain(self._certificate, self._key)
        except OSError as error:
            raise InvalidSpec("certificate", f"{folder}: {error}", expected=" and ".join(_FILES)) from None

    def _read(self) -> list[bytes]:
        return [self._certificate.read_bytes(), self._key.read_bytes()]

    def reload(self) -> bool:
        """Take over another certificate; return whether there was one. Connections keep theirs."""
        try:
            content = self._read()
            if content == self._content:
                return False
            self.context.load_cert_chain(self._certificate, self._key)
        except OSError as error:
            # The files may be in the middle of a change: the next look decides.
            _log.warning("the renewed certificate cannot be used: %s", error)
            return False
        self._content = content
        _log.info("the certificate was renewed")
        return True


class ClusterBoard:
    """The parts of the board of a cluster, from its connection to its socket.

    `listening` is a socket that `run` serves and closes; `stop` ends `run` from another thread.
    """

    def __init__(
        self,
        settings: BoardSettings,
        server: ApiServer,
        listening: socket.socket,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        """Raises InvalidSpec if the certificate cannot be used."""
        self._listening = listening
        self._last_use = -float("inf")
        self._monotonic = monotonic
        self._certificate = Certificate(Path(settings.certificate)) if settings.certificate else None
        owners = FolderOwners(
            settings.run_folders,
            default_output=settings.default_output,
            default_outputs=settings.default_outputs,
        )
        self._jobs = NamespacedJobs(
            server,
            owners,
            namespaces=settings.namespaces,
            clock=clock,
            monotonic=monotonic,
            watched=lambda: self._last_use,
        )
        self._board = Board([], [self._jobs], clock=clock)

        def create(resource: Resource, body: Mapping[str, Any]) -> Raw:
            created: Raw = send(server.api, "POST", resource.path(None), body=body, read_seconds=10.0)[0]
            return created

        self._authorizer = Authorizer(
            create, audiences=settings.audiences, seconds=settings.review_seconds, clock=clock
        )
        app = application(
            self._board,
            self._authorizer,
            hosts=settings.hosts,
            ready=lambda: self.ready,
            used=self._use,
            stopping=lambda: self._server.should_exit,
        )
        config = uvicorn.Config(
            app,
            log_level="error",
            lifespan="off",
            timeout_graceful_shutdown=STOP_SECONDS,
            limit_concurrency=_MOST_CONNECTIONS,
            # The address of a client is not used, so that no header about it needs to be believed.
            proxy_headers=False,
            server_header=False,
        )
        config.load()
        if self._certificate is not None:
            config.ssl = self._certificate.context
        self._server = _Server(config)

    @property
    def ready(self) -> bool:
        """Return whether the board shows the jobs."""
        return self._jobs.listed

    def _use(self) -> None:
        self._last_use = self._monotonic()

    def run(self) -> None:
        """Serve until SIGTERM, SIGINT or `stop`."""
        ended = threading.Event()
        self._jobs.start()
        self._board.start()
        if self._certificate is not None:
            threading.Thread(target=self._renew, args=(ended,), daemon=True, name="certificate").start()
        try:
            self._server.run(sockets=[self._listening])
        finally:
            ended.set()
            self._board.stop()
            self._jobs.stop()
            self._authorizer.stop()
            self._listening.close()

    def stop(self) -> None:
        self._server.should_exit = True

    def _renew(self, ended: threading.Event) -> None:
        assert self._certificate is not None
        while not ended.wait(_CERTIFICATE_SECONDS):
            self._certificate.reload()


def limit_retries() -> None:
    """Let requests to buckets give up soon: a board shows what it has, and reads again later."""
    os.environ.setdefault("MPTRAINING_STORAGE_RETRY_SECONDS", "10")

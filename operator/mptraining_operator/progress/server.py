"""HTTPS server for progress reports, and the endpoint with its certificate, token reviews and status writer.

Every replica runs one. A connection ends with its response: connections that wait for the next report would take memory
for every running job.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from aiohttp import web
from pydantic import ValidationError

from mptraining_api.kubernetes_api import ApiProblem
from mptraining_api.status import Progress
from mptraining_operator.jobs.watch.cache import Cache
from mptraining_operator.progress.auth import (
    LARGEST_BODY,
    JobForProgress,
    Refused,
    TokenReviewer,
    authenticate,
    check_report,
    report_path,
)
from mptraining_operator.progress.certificate import (
    Certificate,
    dns_names,
    ensure_certificate,
    issue_certificate,
    server_context,
)
from mptraining_operator.progress.status import Report
from mptraining_operator.progress.writer import ProgressWriter
from mptraining_operator.runtime.replica import Replica
from mptraining_operator.runtime.server_thread import ServerThread
from mptraining_operator.runtime.values import Key
from mptraining_operator.settings import ProgressSettings

_log = logging.getLogger(__name__)

# Between two writes of one job's progress; each is an event for all who watch the job.
_MINIMUM_SECONDS = 15.0
# Of all jobs together; progressDeadlineSeconds needs some writes of each job a minute.
_WRITES_PER_SECOND = 50.0
# For which a token review is valid: a deleted pod reports no longer than this.
_TOKEN_CACHE_SECONDS = 600.0

# Seconds: for the TLS handshake, and for a request with its token review.
_HANDSHAKE_SECONDS = 5.0
_REQUEST_SECONDS = 10.0
_BUSY_SECONDS = 10
# At the same time, those in their TLS handshake included. Each takes up to 270 KiB (CPython 3.11, measured).
MOST_CONNECTIONS = 500


class ProgressServer(ServerThread):
    """HTTPS server for progress reports.

    `lookup` returns the job of a report, and `offer` takes its report with the job's uid and last progress. Both are
    called in the server's thread and must not block; `lookup` may raise Refused. `count_refused` receives the HTTP
    status of each report that is not accepted.
    """

    def __init__(
        self,
        port: int,
        lookup: Callable[[Key], JobForProgress | None],
        reviewer: TokenReviewer,
        offer: Callable[[Key, str, Report, Progress | None], None],
        certificate: Certificate,
        *,
        host: str = "",
        most_connections: int = MOST_CONNECTIONS,
        count_refused: Callable[[int], None] = lambda status: None,
    ) -> None:
        super().__init__("progress endpoint", host, port)
        self._lookup = lookup
        self._reviewer = reviewer
        self._offer = offer
        self._tls = server_context(certificate)
        self._most_connections = most_connections
        self._count_refused = count_refused

    def stop(self) -> None:
        super().stop()
        self._reviewer.stop()

    def _application(self) -> web.Application:
        application = web.Application(client_max_size=LARGEST_BODY)
        application.router.add_post(report_path(Key("{namespace}", "{name}")), self._count)
        return application

    async def _accept(self, runner: web.AppRunner) -> None:
        """Accept connections up to the limit and close those above it, before their TLS handshake."""
        server = runner.server
        assert server is not None
        loop, handshakes = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError as error:  # Such as too many open files.
                _log.warning("the progress endpoint cannot accept a connection: %s", error)
                await asyncio.sleep(1.0)
                continue
            if len(server.connections) + len(handshakes) >= self._most_connections:
                connection.close()
                continue
            task = loop.create_task(self._connect(server, connection))
            handshakes.add(task)
            task.add_done_callback(handshakes.discard)

    async def _connect(self, server: web.Server, connection: socket.socket) -> None:
        with suppress(OSError):  # TLS errors and time limits too.
            await asyncio.get_running_loop().connect_accepted_socket(
                server,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=_HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=1.0,
            )

    async def _count(self, request: web.Request) -> web.Response:
        try:
            answer = await self._report(request)
        except Exception as error:
            # aiohttp answers with the status of its own exceptions (413), with 504 after a timeout, else with 500.
            self._count_refused(504 if isinstance(error, TimeoutError) else int(getattr(error, "status", 500)))
            raise
        if answer.status != 202:
            self._count_refused(answer.status)
        return answer

    async def _report(self, request: web.Request) -> web.Response:
        try:
            # After this time aiohttp answers with 504.
            async with asyncio.timeout(_REQUEST_SECONDS):
                await self._take(request)
            answer = _answer(202)
        except ConnectionError:
            answer = _answer(400, error="the connection ended before the report did")
        except Refused as refused:
            answer = _answer(refused.status, error=refused.error)
            if refused.retry_after is not None:
                answer.headers["Retry-After"] = str(refused.retry_after)
        answer.force_close()
        return answer

    async def _take(self, request: web.Request) -> None:
        key = Key(request.match_info["namespace"], request.match_info["name"])
        # Authenticate before the body is read, so that unauthenticated clients cannot use memory.
        try:
            job = await authenticate(self._reviewer, request.headers.get("Authorization"), key, self._lookup(key))
        except ApiProblem as problem:
            _log.warning("a token could not be reviewed: %s", problem)
            raise Refused(503, "the token cannot be reviewed now: report again later", _BUSY_SECONDS) from None
        self._offer(key, job.uid, check_report(await request.read(), job), job.progress)


def _answer(status: int, **document: str) -> web.Response:
    return web.Response(status=status, text=json.dumps(document) + "\n", content_type="application/json")


@dataclass(eq=False)
class ProgressEndpoint:
    """The progress server with its token reviews, its certificate in a Secret, and the status writer.

    After `start`, `port` is the port in use and `certificate` PEM.
    """

    settings: ProgressSettings
    namespace: str
    replica: Replica
    cache: Cache

    def __post_init__(self) -> None:
        self._writer = ProgressWriter(
            lambda key, uid, progress: self.replica.cluster.write_progress(key.namespace, key.name, uid, progress),
            self.replica.clock,
            _MINIMUM_SECONDS,
            _WRITES_PER_SECOND,
        )
        self._server: ProgressServer | None = None
        self.port = self.settings.port
        self.certificate = ""

    def start(self, stopping: threading.Event) -> None:
        """Start, with retries until `stopping` is set, before any pod starts: pods need the certificate."""
        pause = 1.0
        while not stopping.is_set():
            try:
                self._start()
                return
            except (ApiProblem, OSError, RuntimeError) as problem:
                _log.warning("the progress endpoint cannot start: %s; trying again in %.0f s", problem, pause)
                stopping.wait(pause)
                pause = min(2 * pause, 15.0)

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._writer.stop(2.0)

    def ended(self) -> str | None:
        """Return that the server's thread has ended, for the health check, or None."""
        return "the progress endpoint has ended" if self._server is not None and not self._server.alive else None

    def _start(self) -> None:
        """Raise ApiProblem, OSError if the port is not available, certificate.InvalidCertificate."""
        names, cluster = dns_names(self.settings.service, self.namespace), self.replica.cluster
        certificate = ensure_certificate(
            cluster,
            self.namespace,
            f"{self.settings.service}-progress",
            lambda: issue_certificate(names, self.replica.clock()),
        )
        reviewer = TokenReviewer(cluster.review_token, self.replica.clock, _TOKEN_CACHE_SECONDS)
        server = ProgressServer(
            self.settings.port,
            self._lookup_job,
            reviewer,
            self._writer.offer,
            certificate,
            count_refused=self.replica.metrics.count_refused_report,
        )
        server.start()
        self._writer.start()
        self.port, self.certificate = server.port, certificate.cert_pem.decode()
        self._server = server

    def _lookup_job(self, key: Key) -> JobForProgress | None:
        if not self.replica.ready:
            raise Refused(503, "the operator has just started: report again later", _BUSY_SECONDS)
        job = self.cache.stored(key)
        if job is None:
            return None
        return JobForProgress(job.uid, job.attempt, self.cache.live_pods(key, job.attempt), _progress(job.progress))


def _progress(written: bytes | None) -> Progress | None:
    """Parse `status.progress`; None also if it is invalid, since the next report replaces it."""
    with suppress(ValidationError):
        return Progress.read(written) if written else None
    return None

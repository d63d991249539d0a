"""HTTPS server for progress reports, and the endpoint with its certificate, token reviews and status writer.

Every replica runs one, in a thread with its own event loop, so that it responds while kopf's loop is busy. A connection
ends with its response: connections that wait for the next report would take memory for every running job.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from aiohttp import web
from pydantic import ValidationError

from mptraining_api.kubernetes_api import ApiProblem
from mptraining_api.status import Progress
from mptraining_operator.cluster import Cluster
from mptraining_operator.plan.snapshot import Key
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
from mptraining_operator.settings import Identity, OperatorSettings
from mptraining_operator.watch.cache import Cache

_log = logging.getLogger(__name__)

# Between two writes of one job's progress; each is an event for all who watch the job.
_MINIMUM_SECONDS = 15.0
# Of all jobs together; progressDeadlineSeconds needs some writes of each job a minute.
_WRITES_PER_SECOND = 50.0
# For which a token review is valid: a deleted pod reports no longer than this.
_TOKEN_CACHE_SECONDS = 600.0

# Seconds: for the TLS handshake, for the head of a request, and for the rest with the token review.
_HANDSHAKE_SECONDS = 5.0
_HEAD_SECONDS = 5.0
_REQUEST_SECONDS = 10.0
_STOP_SECONDS = 5.0
_START_SECONDS = 10.0
_BUSY_SECONDS = 10
# At the same time, those in their TLS handshake included. Each takes up to 270 KiB (CPython 3.11, measured).
MOST_CONNECTIONS = 500


class ProgressServer:
    """HTTPS server for progress reports.

    `lookup` returns the job of a report, and `offer` takes its report with the job's uid and last progress. Both are
    called in the server's thread and must not block; `lookup` may raise Refused. `host` None: all addresses of the
    machine. `port` 0: a free one. `count_refused` receives the HTTP status of each report that is not accepted.
    """

    def __init__(
        self,
        port: int,
        lookup: Callable[[Key], JobForProgress | None],
        reviewer: TokenReviewer,
        offer: Callable[[Key, str, Report, Progress | None], None],
        certificate: Certificate,
        *,
        host: str | None = None,
        most_connections: int = MOST_CONNECTIONS,
        count_refused: Callable[[int], None] = lambda status: None,
    ) -> None:
        self._lookup = lookup
        self._reviewer = reviewer
        self._offer = offer
        self._tls = server_context(certificate)
        self._most_connections = most_connections
        self._count_refused = count_refused
        self._listener = _listen(host, port)
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="progress endpoint", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Finish requests in progress for up to `_STOP_SECONDS`, then stop."""
        if self._thread.is_alive():
            with suppress(RuntimeError):  # The loop has just ended.
                self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(2 * _STOP_SECONDS)
        self._reviewer.stop()

    @property
    def alive(self) -> bool:
        """Whether the server's thread runs, for the health check."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except BaseException:  # noqa: BLE001 - the health check sees that the thread has ended
            _log.exception("the progress endpoint ended")

    async def _serve(self) -> None:
        application = web.Application(client_max_size=LARGEST_BODY)
        application.router.add_post(report_path(Key("{namespace}", "{name}")), self._count)
        runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=_STOP_SECONDS,
            keepalive_timeout=_HEAD_SECONDS,
            # Seconds for which the body of a rejected request is discarded, so that the client can read the response.
            lingering_time=1.0,
        )
        await runner.setup()
        assert runner.server is not None
        accepting = asyncio.create_task(self._accept(runner.server))
        accepting.add_done_callback(lambda _: self._stopping.set())
        await self._stopping.wait()
        accepting.cancel()
        self._listener.close()
        await runner.cleanup()
        with suppress(asyncio.CancelledError):
            await accepting

    async def _accept(self, server: web.Server) -> None:
        """Accept connections up to the limit and close those above it, before their TLS handshake."""
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


def _listen(host: str | None, port: int) -> socket.socket:
    """Return a listening socket, for both IPv4 and IPv6 if the machine supports it. Raises OSError."""
    if host is None and socket.has_dualstack_ipv6():
        found = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512)
    else:
        found = socket.create_server((host or "", port), backlog=512)
    found.setblocking(False)
    return found


class ProgressEndpoint:
    """The progress server with its token reviews, its certificate in a Secret, and the status writer.

    Raises ApiProblem, OSError if the port is not available, certificate.InvalidCertificate.
    """

    def __init__(
        self,
        settings: OperatorSettings,
        identity: Identity,
        cluster: Cluster,
        cache: Cache,
        listed: Callable[[], bool],
        clock: Callable[[], float],
        count_refused: Callable[[int], None] = lambda status: None,
    ) -> None:
        self._cache = cache
        self._listed = listed
        chosen, namespace = settings.progress, identity.namespace
        names = dns_names(chosen.service, namespace)
        certificate = ensure_certificate(
            cluster, namespace, f"{chosen.service}-progress", lambda: issue_certificate(names, clock())
        )
        self.certificate = certificate.cert_pem.decode()
        self._writer = ProgressWriter(
            lambda key, uid, progress: cluster.write_progress(key.namespace, key.name, uid, progress),
            clock,
            _MINIMUM_SECONDS,
            _WRITES_PER_SECOND,
        )
        reviewer = TokenReviewer(cluster.review_token, clock, _TOKEN_CACHE_SECONDS)
        self._server = ProgressServer(
            chosen.port, self._lookup_job, reviewer, self._writer.offer, certificate, count_refused=count_refused
        )
        self._server.start()
        self._writer.start()
        self.service_port = self._server.port

    @property
    def alive(self) -> bool:
        return self._server.alive

    def stop(self) -> None:
        self._server.stop()
        self._writer.stop(2.0)

    def _lookup_job(self, key: Key) -> JobForProgress | None:
        if not self._listed():
            raise Refused(503, "the operator has just started: report again later", _BUSY_SECONDS)
        job = self._cache.stored(key)
        if job is None:
            return None
        return JobForProgress(job.uid, job.attempt, self._cache.live_pods(key, job.attempt), _progress(job.progress))


def _progress(written: bytes | None) -> Progress | None:
    """Parse `status.progress`; None also if it is invalid, since the next report replaces it."""
    with suppress(ValidationError):
        return Progress.read(written) if written else None
    return None

"""HTTPS server for progress reports, and the endpoint with its certificate, token reviews and status writer.

Every replica runs one, in a thread with its own event loop, so that it responds while kopf's loop is busy. `auth`
authenticates and validates the requests; `writer` writes the reports.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
import tempfile
import threading
from asyncio import sslproto
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiohttp import web
from pydantic import ValidationError

from mptraining_api.kubernetes_api import SECRETS, ApiProblem
from mptraining_api.status import Progress
from mptraining_operator.cluster import Cluster
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.progress.auth import (
    LARGEST_BODY,
    JobForProgress,
    Refused,
    Review,
    TokenReviewer,
    bearer_token,
    check_caller,
    check_report,
    report_path,
)
from mptraining_operator.progress.certificate import Certificate, CertificateKeeper, dns_names
from mptraining_operator.progress.writer import ProgressWriter
from mptraining_operator.settings import Identity, OperatorSettings, ProgressSettings
from mptraining_operator.watch.cache import Cache

_log = logging.getLogger(__name__)

# Seconds. A worker's own timeout is 5.
_REQUEST_SECONDS = 10.0
_HANDSHAKE_SECONDS = 5.0
# Longer than the interval between two reports, so that a worker keeps its connection.
_IDLE_SECONDS = 20.0
_STOP_SECONDS = 5.0
_START_SECONDS = 10.0
# The number of concurrent token reviews, also if the API server is slow.
_REVIEWS_AT_ONCE = 8
_BUSY_SECONDS = 10
# A connection uses 45 KiB with this buffer, and 270 KiB with asyncio's default of 256 KiB (CPython 3.11, measured).
_READ_BYTES = 16 * 1024
MOST_CONNECTIONS = 3000


class NotReady(Exception):
    """The replica has not completed its first list, so `lookup` cannot tell whether the job exists."""


class ProgressServer:
    """HTTPS server for progress reports.

    `lookup` must not block, is called from the server's thread, and raises NotReady before the first list. The
    certificate is refreshed every `refresh_seconds`. `host` None: all addresses of the machine.
    """

    def __init__(
        self,
        settings: ProgressSettings,
        lookup: Callable[[Key], JobForProgress | None],
        reviewer: TokenReviewer,
        writer: ProgressWriter,
        certificate: CertificateKeeper,
        *,
        host: str | None = None,
        refresh_seconds: float = 600.0,
        most_connections: int = MOST_CONNECTIONS,
    ) -> None:
        self._settings = settings
        self._lookup = lookup
        self._reviewer = reviewer
        self._writer = writer
        self._certificate = certificate
        self._host = host
        self._refresh_seconds = refresh_seconds
        self._most_connections = most_connections
        self._reviews = ThreadPoolExecutor(_REVIEWS_AT_ONCE, thread_name_prefix="token review")
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._thread = threading.Thread(target=self._run, name="progress endpoint", daemon=True)
        self._started = threading.Event()
        self._problem: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._connected: web.Server | None = None
        self.port = 0

    def start(self) -> None:
        """Start the server and wait until it listens.

        Raises OSError if the port is not available, ssl.SSLError for an invalid certificate, TimeoutError.
        """
        self._thread.start()
        if not self._started.wait(_START_SECONDS):
            raise TimeoutError(f"the progress endpoint does not listen after {_START_SECONDS:g} s")
        if self._problem is not None:
            self._thread.join(_STOP_SECONDS)
            raise self._problem

    def stop(self) -> None:
        """Finish requests in progress for up to `_STOP_SECONDS`, then stop."""
        if self._loop is not None and self._stopping is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(2 * _STOP_SECONDS)
        self._reviews.shutdown(wait=False, cancel_futures=True)

    @property
    def alive(self) -> bool:
        """Whether the server's thread runs, for the health check."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - `start` raises it, or it is logged
            if self._started.is_set():
                _log.exception("the progress endpoint ended")
            self._problem = error
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        load_certificate(self._context, self._certificate.current)
        # This applies to the whole process, kopf's streams included: asyncio has no setting for one server.
        sslproto.SSLProtocol.max_size = _READ_BYTES
        application = web.Application(middlewares=[_json_errors], client_max_size=LARGEST_BODY)
        application.router.add_post(report_path(Key("{namespace}", "{name}")), self._report)
        application.on_response_prepare.append(self._limit_keepalive)
        runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=_STOP_SECONDS,
            keepalive_timeout=_IDLE_SECONDS,
            # Seconds for which the body of a rejected request is discarded, so that the client can read the response.
            lingering_time=1.0,
        )
        await runner.setup()
        server = self._connected = runner.server
        assert server is not None

        def accept() -> asyncio.BaseProtocol:
            full = len(server.connections) >= self._most_connections
            return _RejectedConnection() if full else server()

        listener = await self._loop.create_server(
            accept,
            sock=_socket(self._host, self._settings.port),
            ssl=self._context,
            ssl_handshake_timeout=_HANDSHAKE_SECONDS,
            ssl_shutdown_timeout=1.0,
        )
        self.port = listener.sockets[0].getsockname()[1]
        renewals = asyncio.create_task(self._renew())
        self._started.set()
        try:
            await self._stopping.wait()
        finally:
            renewals.cancel()
            listener.close()
            await runner.cleanup()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_seconds)
            try:
                if await asyncio.to_thread(self._certificate.refresh):
                    # New connections use it; open connections are kept.
                    load_certificate(self._context, self._certificate.current)
                    _log.info("the progress endpoint has a new certificate")
            except Exception:  # noqa: BLE001 - the endpoint keeps its certificate
                _log.exception("the progress endpoint keeps its certificate")

    async def _limit_keepalive(self, request: web.Request, response: web.StreamResponse) -> None:  # noqa: ARG002
        """Close connections after each response above half the limit: another handshake is cheaper than a rejection."""
        if self._connected is not None and len(self._connected.connections) > self._most_connections // 2:
            response.force_close()
            response.headers["Connection"] = "close"

    async def _report(self, request: web.Request) -> web.Response:
        key = Key(request.match_info["namespace"], request.match_info["name"])
        if (request.content_length or 0) > LARGEST_BODY:
            raise _too_large()
        # Authenticate before the body is read, so that unauthenticated clients cannot use memory.
        review = await self._review(bearer_token(request.headers.get("Authorization")))
        try:
            found = self._lookup(key) if review.authenticated else None
        except NotReady:
            raise Refused(503, "the operator has just started: report again later", _BUSY_SECONDS) from None
        job = check_caller(review, key, found)
        self._writer.offer(key, job.uid, check_report(await request.read(), job), job.progress)
        return _answer(202, {})

    async def _review(self, token: str) -> Review:
        known = self._reviewer.cached_review(token)
        if known is not None:
            return known
        try:
            return await asyncio.get_running_loop().run_in_executor(self._reviews, self._reviewer.review_token, token)
        except Exception as error:  # noqa: BLE001 - any failure of the review gives the same response
            _log.warning("a token could not be reviewed: %s", error)
            raise Refused(503, "the token cannot be reviewed now: report again later", _BUSY_SECONDS) from None


def load_certificate(context: ssl.SSLContext, certificate: Certificate) -> None:
    """Load the certificate into the context. Raises ssl.SSLError."""
    # The ssl module loads certificates from files only.
    with tempfile.TemporaryDirectory(prefix="mptraining-") as folder:
        chain = Path(folder) / "chain.pem"
        chain.touch(mode=0o600)
        chain.write_bytes(certificate.key_pem + certificate.cert_pem)
        context.load_cert_chain(chain)


class _RejectedConnection(asyncio.Protocol):
    """Abort a connection above the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.WriteTransport):
            transport.abort()


@web.middleware
async def _json_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Respond in time and in JSON; internal errors are logged, not sent."""
    try:
        async with asyncio.timeout(_REQUEST_SECONDS):
            return await handler(request)
    except Refused as refused:
        return _refusal(refused)
    except TimeoutError:
        return _refusal(Refused(503, "it took too long: report again later", _BUSY_SECONDS))
    except web.HTTPException as error:
        messages = {
            404: f"no such path: use POST {report_path(Key('NAMESPACE', 'NAME'))}",
            405: f"{request.method} is not known here: use POST",
            413: _too_large().error,
        }
        answer = _refusal(Refused(error.status, messages.get(error.status, error.reason)))
        if error.status == 405:
            answer.headers["Allow"] = error.headers["Allow"]
        return answer
    except ConnectionError:
        return _refusal(Refused(400, "the connection ended before the report did"))
    except Exception:  # noqa: BLE001 - the client gets 500 without a traceback
        _log.exception("a report of progress failed")
        return _refusal(Refused(500, "the operator failed, see its log: report again later", _BUSY_SECONDS))


def _too_large() -> Refused:
    return Refused(413, f"a report may have {LARGEST_BODY} bytes: send fewer metrics")


def _refusal(refused: Refused) -> web.Response:
    answer = _answer(refused.status, {"error": refused.error})
    if refused.retry_after is not None:
        answer.headers["Retry-After"] = str(refused.retry_after)
    return answer


def _answer(status: int, document: dict[str, str]) -> web.Response:
    return web.Response(status=status, text=json.dumps(document) + "\n", content_type="application/json")


def _socket(host: str | None, port: int) -> socket.socket:
    """Return a listening socket, for both IPv4 and IPv6 if the machine supports it."""
    if host is None and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512)
    return socket.create_server((host or "", port), backlog=512)


class ProgressEndpoint:
    """The progress server with its token reviews, its certificate in a Secret, and the status writer."""

    def __init__(
        self,
        settings: OperatorSettings,
        identity: Identity,
        cluster: Cluster,
        cache: Cache,
        listed: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._listed = listed
        chosen, namespace = settings.progress, identity.namespace
        name = f"{chosen.service}-progress"

        def read() -> dict[str, Any] | None:
            try:
                return cluster.get(SECRETS, namespace, name)
            except ApiProblem as problem:
                if problem.status != 404:
                    raise
                return None

        self._keeper = CertificateKeeper(
            read,
            lambda body: cluster.create(SECRETS, namespace, body),
            lambda body: cluster.replace(SECRETS, namespace, name, body),
            clock,
            name=name,
            names=dns_names(chosen.service, namespace),
        )
        self._writer = ProgressWriter(
            lambda key, uid, progress: cluster.write_progress(key.namespace, key.name, uid, progress),
            clock,
            chosen.minimum_seconds,
            chosen.writes_per_second,
        )
        reviewer = TokenReviewer(cluster.review_token, clock, chosen.token_cache_seconds)
        self._server = ProgressServer(chosen, self._lookup_job, reviewer, self._writer, self._keeper)
        self._server.start()
        self._writer.start()
        self.service_port = chosen.port or self._server.port

    @property
    def certificate(self) -> str:
        """The CA certificate that pods trust, in PEM."""
        return self._keeper.current.ca_pem.decode()

    @property
    def alive(self) -> bool:
        return self._server.alive

    def stop(self) -> None:
        self._server.stop()
        self._writer.stop(2.0)

    def _lookup_job(self, key: Key) -> JobForProgress | None:
        if not self._listed():
            raise NotReady
        job = self._cache.stored(key)
        if job is None:
            return None
        return JobForProgress(job.uid, job.attempt, self._cache.live_pods(key, job.attempt), _progress(job.progress))


def _progress(written: bytes | None) -> Progress | None:
    """Parse `status.progress`; None also if it is invalid, since the next report replaces it."""
    with suppress(ValidationError):
        return Progress.read(written) if written else None
    return None

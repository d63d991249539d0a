"""The web application of the board in a cluster: the same pages, for requests with a token of Kubernetes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from mptraining.board.access import WRONG_HOST, Right, host_name
from mptraining.board.board import Board
from mptraining.board.in_cluster.authorizer import Authorizer, request_token
from mptraining.board.server import LIVE, Denied, method_refused, pages, refuse, with_security_headers

# For the kubelet, which has no token, and names the pod by its address. They tell nothing about runs.
ALIVE, READY = "/healthz", "/readyz"
# Streams of changes that are open at the same time, one for each open page: of one user, and of all.
MOST_STREAMS_OF_USER, MOST_STREAMS = 20, 500


class NamespaceRights:
    """The permissions of the user of a request: the rights in the namespaces of the jobs."""

    def __init__(self, authorizer: Authorizer, board: Board, used: Callable[[], None]) -> None:
        self._authorizer = authorizer
        self._board = board
        self._used = used
        # The identifiers of the jobs by namespace, and the board's version of which they are.
        self._known: tuple[int, Mapping[str, frozenset[str]]] = (-1, {})

    async def listed(self, request: Request) -> frozenset[str]:
        # A stream of changes asks again and again for as long as its page is open.
        self._used()
        known = self._by_namespace()
        # A user without rights on all namespaces causes a review for each.
        patient = request.url.path == LIVE
        allowed = await self._authorizer.namespaces(_token(request), Right.LIST, known.keys(), patient=patient)
        return frozenset().union(*(known[each] for each in allowed))

    def _by_namespace(self) -> Mapping[str, frozenset[str]]:
        # The version is read before the jobs: jobs that change in between are read again.
        version = self._board.version
        if self._known[0] != version:
            found: dict[str, set[str]] = {}
            for id, each in self._board.jobs().items():
                found.setdefault(each.namespace, set()).add(id)
            self._known = version, {name: frozenset(ids) for name, ids in found.items()}
        return self._known[1]

    async def may_read(self, request: Request, id: str, right: Right) -> bool:
        job = self._board.jobs().get(id)
        return job is not None and await self.may(request, job.namespace, right)

    async def may(self, request: Request, namespace: str, right: Right) -> bool:
        # An empty one would ask for the right in all namespaces.
        return bool(namespace) and await self._authorizer.may(_token(request), right, namespace)


class _Streams:
    """The streams that are open, by the name of their user."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    @contextmanager
    def opened(self, user: str) -> Iterator[None]:
        """Count one more stream until the end of the block. Raises Denied beyond the limits."""
        if self._open[user] >= MOST_STREAMS_OF_USER:
            text = f"you have {MOST_STREAMS_OF_USER} pages of the board open: close one"
            raise Denied(429, text, {"Retry-After": "10"})
        if self._open.total() >= MOST_STREAMS:
            text = f"{MOST_STREAMS} pages of the board are open: try again later"
            raise Denied(503, text, {"Retry-After": "10"})
        self._open[user] += 1
        try:
            yield
        finally:
            self._open[user] -= 1
            # Drop the users without one.
            self._open += Counter()


class _Guard:
    """Checks host, method and token of every request before any route sees it."""

    def __init__(
        self,
        app: ASGIApp,
        authorizer: Authorizer,
        *,
        hosts: Collection[str],
        ready: Callable[[], bool],
    ) -> None:
        self._app = app
        self._authorizer = authorizer
        self._hosts = frozenset(each.lower() for each in hosts)
        self._ready = ready
        self._streams = _Streams()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        try:
            answer = await self._answer(request)
        except Denied as denied:
            answer = refuse(request, denied)
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> ASGIApp:
        if request.method != "GET":
            return method_refused()
        if request.url.path == ALIVE:
            return PlainTextResponse("ok\n")
        if request.url.path == READY:
            return PlainTextResponse("ok\n") if self._ready() else PlainTextResponse("jobs are not listed yet\n", 503)
        if host_name(Headers(scope=request.scope).get("host", "")) not in self._hosts:
            raise Denied(403, WRONG_HOST)
        user = await self._authorizer.user(_token(request))
        return self._counted(str(user.get("username", ""))) if request.url.path == LIVE else self._app

    def _counted(self, user: str) -> ASGIApp:
        async def stream(scope: Scope, receive: Receive, send: Send) -> None:
            answer = self._app
            with ExitStack() as counted:
                try:
                    counted.enter_context(self._streams.opened(user))
                except Denied as denied:
                    answer = refuse(Request(scope), denied)
                await answer(scope, receive, send)

        return stream


def _token(request: Request) -> str:
    return request_token(request.headers)


def application(
    board: Board,
    authorizer: Authorizer,
    *,
    hosts: Collection[str],
    ready: Callable[[], bool],
    used: Callable[[], None] = lambda: None,
    stopping: Callable[[], bool] = lambda: False,
) -> ASGIApp:
    """Return the application. `used` is called while somebody looks at the list of runs."""
    inner = pages(board, NamespaceRights(authorizer, board, used), stopping)
    return with_security_headers(_Guard(inner, authorizer, hosts=hosts, ready=ready))

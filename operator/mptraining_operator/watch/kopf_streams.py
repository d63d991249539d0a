"""Watch stream of MPTrainingJobs by kopf, in a thread with its own event loop; no other part of kopf is used.

The handler only passes objects to the intake; jobs are reconciled from the queue. `kopf.on.event` is used because
kopf's other handlers record their state in annotations of the objects. `watch.reflector` watches Jobs and pods.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import kopf
from kopf._cogs.clients import watching
from kopf._core.reactor import queueing

from mptraining_api.kubernetes_api import JOBS, PAGE
from mptraining_operator.watch.informer import Intake
from mptraining_operator.watch.reflector import SILENT_SECONDS

_log = logging.getLogger(__name__)

_TICK = 1.0
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0

Receive = Callable[[str | None, Any], None]


class WatchStreams:
    """Run kopf and restart it whenever it ends.

    `on_listed` is called for each object that comes from a list instead of a watch. `served` returns whether the API
    server serves the resource, and may raise any exception: kopf discovers resources once at its start, and never
    watches one that is missing then. `on_event` receives the resource of each object that arrives, `on_restart` that of
    a watch that begins again.
    """

    def __init__(
        self,
        intake: Intake,
        *,
        namespaces: tuple[str, ...],
        on_listed: Callable[[], None],
        served: Callable[[], bool],
        on_event: Callable[[str], None] = lambda resource: None,
        on_restart: Callable[[str], None] = lambda resource: None,
    ) -> None:
        self._namespaces = namespaces
        self._served = served
        self._receive = receiver(intake, on_listed, on_event, on_restart)
        self._on_restart = on_restart
        self._stopping = threading.Event()
        self._end: Callable[[], object] = lambda: None
        # None between two runs of kopf.
        self._ticked: float | None = None
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        self._stopping.set()
        with suppress(RuntimeError):
            self._end()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def seconds_since_tick(self) -> float:
        """Return the seconds since kopf's event loop last ran; 0 between two runs of kopf."""
        ticked = self._ticked
        if ticked is None:
            return 0.0 if self._thread.is_alive() else math.inf
        return time.monotonic() - ticked

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            if not self._is_served():
                self._stopping.wait(_TICK)
                continue
            began = self._ticked = time.monotonic()
            try:
                asyncio.run(self._operate())
            except Exception as error:  # noqa: BLE001 - kopf is restarted after any error
                _log.warning("the watch streams ended and restart in %.0f s: %s", pause, error)
            self._ticked = None
            if self._stopping.wait(pause):
                return
            self._on_restart(JOBS.plural)
            pause = _FIRST_PAUSE if time.monotonic() - began > 60 else min(2 * pause, _LONGEST_PAUSE)

    def _is_served(self) -> bool:
        try:
            return self._served()
        except Exception as error:  # noqa: BLE001 - discovery is retried
            _log.warning("API discovery failed: %s", error)
            return False

    async def _operate(self) -> None:
        # An asyncio.Event: kopf waits for a threading.Event in a thread, which would outlive this run of kopf.
        end, loop = asyncio.Event(), asyncio.get_running_loop()
        self._end = lambda: loop.call_soon_threadsafe(end.set)
        if self._stopping.is_set():
            return
        ticking = asyncio.create_task(self._tick())
        where: dict[str, Any] = {"namespaces": self._namespaces} if self._namespaces else {"clusterwide": True}
        try:
            with warnings.catch_warnings(), without_tasks(self._receive):
                warnings.simplefilter("ignore")
                await kopf.operator(
                    registry=registry(self._receive),
                    settings=settings(),
                    standalone=True,
                    stop_flag=end,
                    **where,
                )
        finally:
            ticking.cancel()

    async def _tick(self) -> None:
        while True:
            self._ticked = time.monotonic()
            await asyncio.sleep(_TICK)


def registry(receive: Receive) -> kopf.OperatorRegistry:
    """Return kopf's handlers: of the stream, and the login."""
    handlers = kopf.OperatorRegistry()

    # kopf watches the resources that have a handler.
    @kopf.on.event(JOBS.group, JOBS.version, JOBS.plural, registry=handlers, id=JOBS.plural)
    async def handle(event: Any, type: str | None, **_: Any) -> None:
        receive(type, event["object"])

    kopf.on.login(registry=handlers, id="login", errors=kopf.ErrorsMode.TEMPORARY, backoff=5)(_log_in)
    return handlers


@contextmanager
def without_tasks(receive: Receive, silent_seconds: float = SILENT_SECONDS) -> Iterator[None]:
    """Give the events of kopf's watch to `receive` directly, and begin the watch of a namespace again if it ends.

    kopf starts a task for each object, which builds causes, loggers and patches, and then calls the handler: most of
    the operator's processor time for an event. It also ends all watches if that of one namespace is refused. No public
    name of kopf leaves that out; pyproject.toml limits kopf to the versions that were tested.
    """
    watcher = queueing.watcher

    async def watch(*, resource: Any, settings: Any, namespace: Any, **rest: Any) -> None:
        if resource.plural != JOBS.plural:
            await watcher(resource=resource, settings=settings, namespace=namespace, **rest)
            return
        pause, reported = _FIRST_PAUSE, ""
        while True:
            # kopf's toggles of indexed resources are left alone: none is indexed.
            events = watching.infinite_watch(
                settings=settings, resource=resource, namespace=namespace, operator_paused=rest.get("operator_paused")
            )
            try:
                while True:
                    # After the restore of an etcd backup, the API server is silent until it reaches the version of the
                    # watch, which kopf asks for again and again; the next watch begins with a list.
                    event = await asyncio.wait_for(anext(events), silent_seconds)
                    if not isinstance(event, watching.Bookmark) and event.get("type") != "BOOKMARK":
                        _give(receive, event)
                    pause, reported = _FIRST_PAUSE, ""
            except TimeoutError:
                _log.info("the watch of mptrainingjobs is silent and begins again")
            except Exception as error:  # noqa: BLE001 - the watches of other namespaces continue
                level = logging.INFO if str(error) == reported else logging.WARNING
                reported = str(error)
                where = f"in namespace {namespace}" if namespace else "of all namespaces"
                _log.log(level, "the watch of mptrainingjobs %s ended: %s", where, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    queueing.watcher = watch
    try:
        yield
    finally:
        queueing.watcher = watcher


def _give(receive: Receive, event: Any) -> None:
    try:
        receive(event.get("type"), event["object"])
    except Exception:  # noqa: BLE001 - one malformed object must not stop the watch
        _log.exception("an event about one of the mptrainingjobs is skipped")


def settings() -> kopf.OperatorSettings:
    """Return kopf's settings for watching only."""
    result = kopf.OperatorSettings()
    result.posting.enabled = False
    result.peering.standalone = True
    result.scanning.disabled = True
    result.watching.chunk_size = PAGE
    result.watching.server_timeout = 300
    result.watching.connect_timeout = 10
    result.networking.request_timeout = 30
    # Retries for an hour, so that an unavailable API server does not end the streams.
    result.networking.error_backoffs = (1, 1, 2, 3, 5, 8, *[10] * 360)
    return result


def receiver(
    intake: Intake,
    on_listed: Callable[[], None],
    on_event: Callable[[str], None] = lambda resource: None,
    on_restart: Callable[[str], None] = lambda resource: None,
) -> Receive:
    """Return the receiver of kopf's events: their type, None for one of a list, and their object."""
    # kopf begins with a list, and lists again only after its watch ended with an error.
    listing = True

    def receive(type: str | None, raw: Any) -> None:
        nonlocal listing
        on_event(JOBS.plural)
        if type is None and not listing:
            on_restart(JOBS.plural)
        listing = type is None
        if type == "DELETED":
            intake.remove(JOBS, raw)
            return
        if type is None:
            on_listed()
        intake.put(JOBS, raw)

    return receive


def _log_in(**given: Any) -> kopf.ConnectionInfo | None:
    """Log in with the pod's service account, else with KUBECONFIG, including its exec credential plugins."""
    return kopf.login_with_service_account(**given) or kopf.login_via_client(**given)

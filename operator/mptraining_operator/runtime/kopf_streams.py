"""Watches of the primary resources by kopf: an operator of kopf for each namespace, in a thread with one event loop.

The handlers only pass objects to the streams; jobs and sweeps are reconciled from queues. `kopf.on.event` is used
because kopf's other handlers record their state in annotations of the objects. An error of kopf ends its operator: each
namespace has one, so that the others continue, and is started again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import kopf

from mptraining_api.kubernetes_api import PAGE
from mptraining_operator.runtime.informer import FIRST_PAUSE, LONGEST_PAUSE, Informer, Stream
from mptraining_operator.runtime.metrics import Metrics

_log = logging.getLogger(__name__)

_TICK = 1.0


class KopfStreams:
    """Run kopf, and run it again whenever it ends.

    It skips streams of which the informer knows no objects: kopf would end with their error. `clock` is monotonic,
    in seconds.
    """

    def __init__(
        self, streams: Sequence[Stream], informer: Informer, metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        self._streams = tuple(streams)
        self._informer = informer
        self._metrics = metrics
        self._clock = clock
        self._stopping = threading.Event()
        # The flag that ends kopf, by namespace.
        self._ends: dict[str | None, asyncio.Event] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ticked = self._clock()
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)

    def start(self) -> None:
        self._ticked = self._clock()
        self._thread.start()

    def restart(self) -> None:
        """Begin all watches again with lists: other resources are known, or resourceVersions have gone back."""
        loop = self._loop
        with suppress(RuntimeError):  # The loop has just ended.
            if loop is not None:
                loop.call_soon_threadsafe(self._end_all)

    def stop(self, seconds: float = 5.0) -> None:
        self._stopping.set()
        self.restart()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def seconds_since_tick(self) -> float:
        """Return the seconds since the event loop last ran; 0 before the start."""
        return self._clock() - self._ticked if self._thread.ident is not None else 0.0

    def _end_all(self) -> None:
        for end in self._ends.values():
            end.set()

    def _run(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            asyncio.run(self._watch_all())

    async def _watch_all(self) -> None:
        self._loop = asyncio.get_running_loop()
        watches = [asyncio.create_task(self._watch(namespace)) for namespace in self._informer.namespaces]
        while not self._stopping.is_set():
            self._ticked = self._clock()
            await asyncio.sleep(_TICK)
        self._end_all()
        await asyncio.gather(*watches)

    async def _watch(self, namespace: str | None) -> None:
        pause = FIRST_PAUSE
        scope = f"in namespace {namespace}" if namespace else "of all namespaces"
        while not self._stopping.is_set():
            began, end = self._clock(), asyncio.Event()
            try:
                ran = await self._run_kopf(namespace, end)
            except Exception as error:  # noqa: BLE001 - kopf is started again after any error
                ran = True
                pause = FIRST_PAUSE if self._clock() - began > 60 else min(2 * pause, LONGEST_PAUSE)
                _log.warning("the watches of kopf %s ended and begin again in %.0f s: %s", scope, pause, error)
            if self._stopping.is_set():
                return
            if not end.is_set():
                await asyncio.sleep(pause if ran else _TICK)

    async def _run_kopf(self, namespace: str | None, end: asyncio.Event) -> bool:
        """Run kopf until `end` is set or an error; return False if nothing is known that it could watch."""
        if self._ends.pop(namespace, None) is not None:
            # A resource that is gone would not be watched again: kopf looks for resources at its start alone. And kopf
            # reports no deletions from between two of its watches.
            await asyncio.to_thread(self._informer.list_primary, namespace)
        known = [stream for stream in self._streams if self._informer.is_known((stream,), namespace)]
        if not known:
            return False
        self._ends[namespace] = end
        where: dict[str, Any] = {"namespaces": [namespace]} if namespace else {"clusterwide": True}
        await kopf.operator(registry=self._registry(known), standalone=True, stop_flag=end, **where)
        return True

    def _registry(self, streams: Sequence[Stream]) -> kopf.OperatorRegistry:
        """Return kopf's handlers: of each stream, the settings and the login."""
        registry = kopf.OperatorRegistry()
        for stream in streams:
            resource = stream.resource
            kopf.on.event(resource.group, resource.version, resource.plural, registry=registry, id=resource.plural)(
                self._handler(stream)
            )
        kopf.on.startup(registry=registry, id="configure")(_configure)
        kopf.on.login(registry=registry, id="login", errors=kopf.ErrorsMode.TEMPORARY, backoff=5)(_log_in)
        return registry

    def _handler(self, stream: Stream) -> Callable[..., Any]:
        # kopf begins with a list, and lists again only after its watch ended with an error.
        listing = True

        async def handle(event: Any, **_: Any) -> None:
            nonlocal listing
            self._metrics.watch_event(stream.resource.plural)
            if event["type"] is None:
                if not listing:
                    self._metrics.count_watch_restart(stream.resource.plural)
                # kopf does not report the deletion of objects that such a list lacks.
                self._informer.request_list()
            listing = event["type"] is None
            receive(stream, event["type"], event["object"])

        return handle


def receive(stream: Stream, kind: str | None, raw: Any) -> None:
    """Pass an object on, of a list (None) or a watch; one malformed object must not stop the watch."""
    try:
        received = stream.of_mapping(raw)
        if kind == "DELETED":
            stream.remove(received)
        else:
            stream.put(received)
    except Exception:  # noqa: BLE001 - kopf would end
        _log.exception("an event about one of the %s is skipped", stream.resource.plural)


async def _configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    """Let kopf watch only."""
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.chunk_size = PAGE
    settings.watching.server_timeout = 300
    settings.watching.connect_timeout = 10
    settings.networking.request_timeout = 30
    # Retries for an hour, so that an unavailable API server does not end the streams.
    settings.networking.error_backoffs = (1, 1, 2, 3, 5, 8, *[10] * 360)


def _log_in(**given: Any) -> kopf.ConnectionInfo | None:
    """Log in with the pod's service account, else with KUBECONFIG, including its exec credential plugins."""
    return kopf.login_with_service_account(**given) or kopf.login_via_client(**given)

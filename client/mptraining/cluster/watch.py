"""Objects of a cluster, kept by one list and one watch: the API server sends only what changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from mptraining.cluster.api import ApiServer
from mptraining.cluster.errors import ClusterProblem, NotAllowed, NotFound, NotInstalled
from mptraining_api.kubernetes_api import Raw, Resource
from mptraining_api.problems import Problem

_GONE = 410
# After a watch that was shorter: a server may refuse it at once, and a proxy may end it.
_PAUSE_SECONDS = 3.0


class ClusterWatch:
    """All objects of a kind in the namespace of `server`, or in all namespaces. Thread-safe."""

    def __init__(
        self,
        server: ApiServer,
        resource: Resource,
        *,
        clock: Callable[[], float],
        everywhere: bool,
        optional: bool = False,
    ) -> None:
        """An `optional` kind has no objects if the user may not list it, or if it is not installed."""
        self.problem: str | None = None
        self._server = server
        self._resource = resource
        self._clock = clock
        self._everywhere = everywhere
        self._optional = optional
        self._objects: dict[str, Raw] = {}
        # The resourceVersion of the last change; empty if the objects must be listed.
        self._version = ""
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def objects(self) -> Sequence[Raw]:
        with self._lock:
            return [*self._objects.values()]

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True, name=f"watch of {self._resource.plural}").start()

    def stop(self) -> None:
        self._stopped.set()

    def list(self) -> None:
        """List all objects; a failure is the `problem`."""
        try:
            items, version = self._server.collection(self._resource, everywhere=self._everywhere)
        except Problem as problem:
            if self._optional and isinstance(problem, NotAllowed | NotFound | NotInstalled):
                self.stop()
            else:
                self.problem = str(problem)
            return
        with self._lock:
            self._objects = {item["metadata"]["uid"]: item for item in items}
        self._version, self.problem = version, None

    def watch(self) -> None:
        """Take over changes until the API server ends the watch. Raises ClusterProblem."""
        for change in self._server.watch(self._resource, self._version, everywhere=self._everywhere):
            if change["type"] == "ERROR":
                self._list_again(int(change["object"].get("code") or 0), str(change["object"].get("message")))
                return
            self._take(change["type"], change["object"])
            if self._stopped.is_set():
                return

    def _take(self, kind: str, item: Mapping[str, object]) -> None:
        metadata = item["metadata"]
        assert isinstance(metadata, Mapping)
        with self._lock:
            if kind == "DELETED":
                self._objects.pop(metadata["uid"], None)
            elif kind != "BOOKMARK":
                self._objects[metadata["uid"]] = dict(item)
        self._version, self.problem = str(metadata["resourceVersion"]), None

    def _list_again(self, status: int, message: str) -> None:
        """Begin with a list again; that the version is too old (410) is no problem."""
        self._version = ""
        if status != _GONE:
            self.problem = message

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._stopped.wait(self.turn())

    def turn(self) -> float:
        """Watch until the API server ends it, after a list if necessary; return the seconds to wait before the next."""
        begin = self._clock()
        if not self._version:
            self.list()
        if self._version:
            try:
                self.watch()
            except ClusterProblem as problem:
                self._list_again(problem.status, str(problem))
        return 0.0 if self._clock() - begin >= _PAUSE_SECONDS else _PAUSE_SECONDS

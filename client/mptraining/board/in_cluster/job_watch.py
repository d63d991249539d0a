"""The MPTrainingJobs of some namespaces, by a list and a watch for each, so that the API server sends only changes."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from mptraining_api.kubernetes_api import JOBS, ApiProblem, Raw, lines, pages, send

Kept = TypeVar("Kept")
Key = tuple[str, str]

_log = logging.getLogger(__name__)

# The API server ends a watch after this time. It sends a bookmark about once a minute, so that a longer silence means
# that the connection is lost.
_WATCH_SECONDS, _SILENT_SECONDS = 300, 90.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0


class JobWatch(Generic[Kept]):
    """Keeps `keep(job)` of each job, by namespace and name. Thread-safe.

    `api` is a kubernetes.client.ApiClient. Without `namespaces` the jobs of all are watched. `monotonic` is in seconds.
    """

    def __init__(
        self, api: Any, namespaces: Sequence[str], keep: Callable[[Raw], Kept], *, monotonic: Callable[[], float]
    ) -> None:
        self._api = api
        self._monotonic = monotonic
        self._scopes: tuple[str | None, ...] = tuple(dict.fromkeys(namespaces)) or (None,)
        self._keep = keep
        self._jobs: dict[str | None, dict[Key, Kept]] = {}
        self._problems: dict[str | None, str] = {}
        self._tried: set[str | None] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def start(self) -> None:
        for scope in self._scopes:
            threading.Thread(target=self._follow, args=(scope,), daemon=True, name=f"jobs of {scope or 'all'}").start()

    def stop(self) -> None:
        self._stop.set()

    @property
    def listed(self) -> bool:
        """Return whether every namespace was tried once, and one could be listed: another one hides no jobs."""
        with self._lock:
            return len(self._tried) == len(self._scopes) and bool(self._jobs)

    @property
    def problem(self) -> str | None:
        """Return why a namespace cannot be listed or watched now."""
        with self._lock:
            return next(iter(self._problems.values()), None)

    def jobs(self) -> Mapping[Key, Kept]:
        with self._lock:
            return {key: each for jobs in self._jobs.values() for key, each in jobs.items()}

    def _follow(self, scope: str | None) -> None:
        pause = _FIRST_PAUSE
        version = ""
        while not self._stop.is_set():
            begin = self._monotonic()
            try:
                watched = bool(version)
                version = self._watch(scope, version) if watched else self._list(scope)
                pause = _FIRST_PAUSE
                self._report(scope, None)
                if watched and self._monotonic() - begin < _FIRST_PAUSE:
                    # A proxy or an API server that ends each watch at once is not asked without a pause.
                    self._stop.wait(_FIRST_PAUSE)
            except ApiProblem as problem:
                # After 410 Gone the version is too old, and after any other problem a list does no harm.
                version = ""
                if problem.status == 410:
                    self._stop.wait(_FIRST_PAUSE)
                    continue
                self._report(scope, str(problem))
                self._stop.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            except Exception as error:  # noqa: BLE001 - a thread that ended would leave old rows without a word
                version = ""
                _log.exception("the jobs of %s cannot be read", scope or "all namespaces")
                self._report(scope, f"{type(error).__name__}: {error}")
                self._stop.wait(_LONGEST_PAUSE)

    def _report(self, scope: str | None, problem: str | None) -> None:
        with self._lock:
            self._tried.add(scope)
            before = self._problems.pop(scope, None)
            if problem is not None:
                self._problems[scope] = problem
        if problem is not None and problem != before:
            _log.warning("the jobs of %s cannot be read: %s", scope or "all namespaces", problem)

    def _list(self, scope: str | None) -> str:
        """Replace all jobs of the scope; return the version of the list."""
        path = JOBS.path(scope)
        found: dict[Key, Kept] = {}
        version = ""

        def get(query: Mapping[str, str]) -> Raw:
            page: Raw = send(self._api, "GET", path, query=query)[0]
            return page

        for page in pages(get, {}):
            version = str(page["metadata"]["resourceVersion"])
            for item in page.get("items") or ():
                kept = self._kept(item)
                if kept is not None:
                    found[_key(item)] = kept
        with self._lock:
            self._jobs[scope] = found
        return version

    def _watch(self, scope: str | None, version: str) -> str:
        """Follow the changes after `version` until the API server ends the watch; return the last version."""
        query = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        for line in lines(self._api, JOBS.path(scope), query=query, read_seconds=_SILENT_SECONDS):
            event = json.loads(line)
            kind, item = event["type"], event["object"]
            if kind == "ERROR":
                raise ApiProblem(int(item.get("code") or 0), str(item.get("reason")), str(item.get("message")))
            version = str(item["metadata"]["resourceVersion"])
            if kind == "BOOKMARK":
                continue
            kept = None if kind == "DELETED" else self._kept(item)
            with self._lock:
                jobs = self._jobs[scope]
                if kept is None:
                    jobs.pop(_key(item), None)
                else:
                    jobs[_key(item)] = kept
            if self._stop.is_set():
                break
        return version

    def _kept(self, item: Raw) -> Kept | None:
        try:
            return self._keep(item)
        except Exception:  # noqa: BLE001 - one job that cannot be read must not hide the others
            _log.exception("the job %s cannot be shown", "/".join(_key(item)))
            return None


def _key(item: Raw) -> Key:
    return str(item["metadata"]["namespace"]), str(item["metadata"]["name"])

"""The board's state: all sources, one thread for each, and a version that grows with each change."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from mptraining.board import rows
from mptraining.board import sweep_answers as answers
from mptraining.board.series import groups
from mptraining.board.sources import JobSource, Source
from mptraining.board.sweep_answers import ShownSweep
from mptraining.runs.facts import JobFacts, RunFacts
from mptraining.runs.reader import RunReader
from mptraining_api.problems import Problem
from mptraining_storage import storage

_log = logging.getLogger(__name__)

# The first answer waits so long for sources that were not read yet; a bucket may take longer and comes later.
FIRST_SECONDS = 3.0
# Curves in memory; beyond it those that were drawn longest ago are read again when they are needed.
MEMORY = 512 << 20
# Of larger runs in a bucket the best values are computed when they are opened, not in the background.
REMOTE_BYTES = 1 << 20
# The background thread waits so long after an answer, as a page asks for several things one after the other.
QUIET_SECONDS = 0.5
# Versions of which the changes are kept for `changes_since`.
_KEPT = 1000


class Board:
    """All runs of all sources. Thread-safe."""

    def __init__(
        self, sources: Sequence[Source], jobs: Sequence[JobSource] = (), *, clock: Callable[[], float] = time.time
    ) -> None:
        self.sources: tuple[Source, ...] = (*sources, *jobs)
        self.clock = clock
        self._job_sources = tuple(jobs)
        self.version = 0
        self._changes: deque[tuple[int, frozenset[str]]] = deque(maxlen=_KEPT)
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._read = {id(each): threading.Event() for each in self.sources}
        # By the time of the last use; guarded by `_room`.
        self._used: dict[str, None] = {}
        self._room = threading.Lock()
        self._states: dict[str, str] = {}
        self._threads: list[threading.Thread] = []
        self._answering = 0
        self._answered = time.monotonic()

    # -- threads ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        work = [*(lambda each=each: self._follow(each) for each in self.sources), self._read_in_background]
        self._threads = [threading.Thread(target=each, daemon=True, name="board") for each in work]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for read in self._read.values():
            read.set()
        with self._changed:
            self._changed.notify_all()

    def refresh(self) -> None:
        """Refresh all sources once, in this thread."""
        for each in self.sources:
            self._refresh(each)

    def wait_until_read(self, seconds: float = FIRST_SECONDS) -> None:
        """Wait until each source was read once, for at most `seconds`."""
        end = time.monotonic() + seconds
        for each in self._read.values():
            each.wait(max(0.0, end - time.monotonic()))

    def _follow(self, source: Source) -> None:
        while not self._stop.is_set():
            self._refresh(source)
            self._stop.wait(source.seconds)

    def _refresh(self, source: Source) -> None:
        before = source.problem
        try:
            changed = source.refresh() | self._silent_runs(source)
        except Exception as error:  # noqa: BLE001 - the page reports it; a thread that ended would leave old rows
            changed = set()
            source.problem = f"{type(error).__name__}: {error}"
        self._read[id(source)].set()
        if changed or source.problem != before:
            self.publish(changed)

    def _silent_runs(self, source: Source) -> set[str]:
        """Return the runs whose state changed by the clock alone: they have reported nothing for too long."""
        changed = set()
        now = self.clock()
        for each in list(source.runs().values()):
            if each.result is None:
                found = rows.state(each.facts, now)[0]
                if self._states.get(each.id, found) != found:
                    changed.add(each.id)
                self._states[each.id] = found
        return changed

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Let the background thread wait until the end of the block: an answer needs the processor first."""
        with self._changed:
            self._answering += 1
        try:
            yield
        finally:
            with self._changed:
                self._answering -= 1
                self._answered = time.monotonic()

    def _wait_for_quiet(self) -> None:
        """Wait until no answer has been under way for `QUIET_SECONDS`, or until the end."""
        while not self._stop.is_set():
            with self._changed:
                rest = QUIET_SECONDS if self._answering else self._answered + QUIET_SECONDS - time.monotonic()
            if rest <= 0:
                return
            self._stop.wait(rest)

    def _read_in_background(self) -> None:
        """Read the curves of each run once for its best values."""
        failed: set[str] = set()
        for read in self._read.values():
            read.wait()
        while not self._stop.is_set():
            missing = [each for each in self.readers().values() if not each.complete and each.id not in failed]
            small = [each for each in missing if not storage.is_remote(each.folder) or each.size <= REMOTE_BYTES]
            done: set[str] = set()
            for each in small:
                self._wait_for_quiet()
                if self._stop.is_set():
                    return
                try:
                    each.curves()
                except Problem:
                    failed.add(each.id)
                    continue
                except Exception:  # noqa: BLE001 - a thread that ended would leave the best values of all runs out
                    _log.exception("the events of %s cannot be read", each.folder)
                    failed.add(each.id)
                    continue
                done.add(each.id)
                self._make_room(each)
                if len(done) >= 50:
                    self.publish(done)
                    done = set()
            if done:
                self.publish(done)
            self._stop.wait(0.2)

    def _make_room(self, reader: RunReader) -> None:
        """Note the use of a run's curves, and drop those that were used longest ago beyond the limit of memory."""
        readers = self.readers()
        with self._room:
            self._used.pop(reader.id, None)
            self._used[reader.id] = None
            total = sum(readers[each].memory() for each in self._used if each in readers)
            for each in list(self._used):
                if total <= MEMORY or each == reader.id:
                    break
                if each in readers:
                    total -= readers[each].memory()
                    readers[each].forget()
                self._used.pop(each, None)

    # -- changes ------------------------------------------------------------------------------------------------

    def publish(self, changed: set[str]) -> None:
        with self._changed:
            self.version += 1
            self._changes.append((self.version, frozenset(changed)))
            self._changed.notify_all()

    def changes_since(self, version: int) -> tuple[int, list[str]]:
        """Return the current version and the identifiers of runs that changed after `version`."""
        with self._changed:
            found: set[str] = set()
            for number, changed in self._changes:
                if number > version:
                    found |= changed
            return self.version, sorted(found)

    # -- answers ------------------------------------------------------------------------------------------------

    def readers(self) -> dict[str, RunReader]:
        """Return the runs that have a folder, by identifier."""
        return {id: each for source in self.sources for id, each in list(source.runs().items())}

    def reader(self, id: str) -> RunReader | None:
        found = self.readers().get(id)
        if found is not None:
            self._make_room(found)
        return found

    def facts(self) -> dict[str, RunFacts]:
        """Return what the rows show, by identifier; a job is in the row of its run folder, if that is read."""
        found = {id: each.facts for id, each in self.readers().items()}
        for id, job in self.jobs().items():
            known = found.get(id) or RunFacts(id, job.name, None, resolved=job.resolved)
            found[id] = replace(known, job=job)
        return found

    def jobs(self) -> Mapping[str, JobFacts]:
        """Return the jobs by the identifiers of their rows. Waits for no lock."""
        return {id: each for source in self._job_sources for id, each in source.jobs().items()}

    def job(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the answer of /api/job; None for an unknown job. Raises Problem."""
        answers = (each.job(namespace, name) for each in self._job_sources)
        return next((each for each in answers if each is not None), None)

    def shown_sweeps(self) -> dict[str, ShownSweep]:
        """Return the sweeps of all sources, by identifier."""
        return {id: sweep for source in self.sources for id, sweep in (source.sweeps() or {}).items()}

    def sweeps(self) -> dict[str, Any]:
        """Return the answer of /api/sweeps, the newest first."""
        shown = [*self.shown_sweeps().values()]
        found = sorted(shown, key=lambda each: each.view.status.start_time or "", reverse=True)
        return {"sweeps": [answers.row(each) for each in found], "version": self.version}

    def sweep(self, id: str) -> dict[str, Any] | None:
        """Return the answer of /api/sweep/ID; None for an unknown sweep."""
        found = self.shown_sweeps().get(id)
        if found is None:
            return None
        runs = self.facts()
        return answers.details(found, runs)

    def runs(self) -> dict[str, Any]:
        """Return the answer of /api/runs."""
        now, version = self.clock(), self.version
        known = self.facts()
        facts = _with_unique_names(known)
        found = [_row(each, now) for each in facts.values()]
        found.sort(key=lambda each: (-each["values"].get("startTime", 0.0), each["name"]))
        sources = [{"where": each.where, "problem": each.problem} for each in self.sources]
        names = dict.fromkeys(name for each in facts.values() for name in each.series)
        columns = rows.columns(found)
        rows.mark_best(found, columns)
        return {
            "columns": columns,
            "runs": found,
            "series": groups(names),
            "sources": sources,
            "version": version,
        }


def _row(facts: RunFacts, now: float) -> dict[str, Any]:
    """Return the row of a run; of one that cannot be shown, that of its job and name alone."""
    try:
        return rows.row(facts, now)
    except Exception:  # noqa: BLE001 - one run must not hide all others
        _log.exception("the run %s cannot be shown", facts.folder or facts.name)
        return rows.row(RunFacts(facts.id, facts.name, facts.folder, job=facts.job), now)


def _with_unique_names(facts: dict[str, RunFacts]) -> dict[str, RunFacts]:
    """Name runs of the same name by the namespace of their job, or by their folders."""
    seen: dict[str, int] = {}
    for each in facts.values():
        seen[each.name] = seen.get(each.name, 0) + 1
    return {id: replace(each, name=_longer_name(each)) if seen[each.name] > 1 else each for id, each in facts.items()}


def _longer_name(facts: RunFacts) -> str:
    if facts.job is not None:
        return f"{facts.job.namespace}/{facts.job.name}"
    return facts.folder or facts.name

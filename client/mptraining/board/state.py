"""The board's state: all sources, one thread for each, and a version that grows with each change."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from mptraining.board import details, rows, sweep_answers
from mptraining.board.sources import Source
from mptraining.board.sweep_answers import ShownSweep
from mptraining.runs.facts import RunFacts
from mptraining.runs.reader import RunReader
from mptraining.runs.series import sections
from mptraining_api.problems import Problem
from mptraining_storage import storage

_log = logging.getLogger(__name__)

# The first answer waits so long for sources that were not read yet; a bucket may take longer and comes later.
FIRST_SECONDS = 3.0
# Curves in memory; beyond it those that were drawn longest ago are read again when they are needed.
MEMORY = 512 << 20
# The background thread does not read larger runs in a bucket; their best values are computed when they are opened.
REMOTE_BYTES = 1 << 20
# The background thread waits so long after an answer, as a page asks for several things one after the other.
QUIET_SECONDS = 0.5
# `changes_since` knows the changes of this many versions.
_KEPT = 1000


class Board:
    """All runs of all sources. Thread-safe."""

    def __init__(self, sources: Sequence[Source], *, clock: Callable[[], float] = time.time) -> None:
        self.sources = tuple(sources)
        self.clock = clock
        self.version = 0
        self._changes: deque[tuple[int, frozenset[str]]] = deque(maxlen=_KEPT)
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._read = [threading.Event() for _ in self.sources]
        # The runs in the order of their last use; guarded by `_room`.
        self._used: dict[str, None] = {}
        self._room = threading.Lock()
        self._states: dict[str, str] = {}
        self._answering = 0
        self._answered = time.monotonic()

    # -- threads ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        for source, read in zip(self.sources, self._read, strict=True):
            threading.Thread(target=self._follow, args=(source, read), daemon=True, name=source.where).start()
        threading.Thread(target=self._read_in_background, daemon=True, name="best values").start()

    def stop(self) -> None:
        self._stop.set()
        for source, read in zip(self.sources, self._read, strict=True):
            source.stop()
            read.set()
        with self._changed:
            self._changed.notify_all()

    def refresh(self) -> None:
        """Refresh all sources once, in this thread."""
        for source in self.sources:
            self._refresh(source)

    def wait_until_read(self, seconds: float = FIRST_SECONDS) -> None:
        """Wait until each source was read once, for at most `seconds`."""
        end = time.monotonic() + seconds
        for read in self._read:
            read.wait(max(0.0, end - time.monotonic()))

    def _follow(self, source: Source, read: threading.Event) -> None:
        self._refresh(source)
        read.set()
        source.start()
        while not self._stop.wait(source.seconds):
            self._refresh(source)

    def _refresh(self, source: Source) -> None:
        before = source.problem
        try:
            changed = source.refresh() | self._silent_runs(source)
        except Exception as error:  # noqa: BLE001 - the page reports it; a thread that ended would leave old rows
            changed = set()
            source.problem = f"{type(error).__name__}: {error}"
        if changed or source.problem != before:
            self.publish(changed)

    def _silent_runs(self, source: Source) -> set[str]:
        """Return the runs whose state changed because they have reported nothing for too long."""
        changed = set()
        now = self.clock()
        for reader in list(source.runs().values()):
            if reader.result is None:
                state = rows.state(reader.facts, now)[0]
                if self._states.get(reader.run_id, state) != state:
                    changed.add(reader.run_id)
                self._states[reader.run_id] = state
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
        for read in self._read:
            read.wait()
        while not self._stop.is_set():
            missing = [reader for run_id, reader in self.readers().items() if not (reader.complete or run_id in failed)]
            done: set[str] = set()
            for reader in missing:
                if storage.is_remote(reader.folder) and reader.size > REMOTE_BYTES:
                    continue
                self._wait_for_quiet()
                if self._stop.is_set():
                    return
                try:
                    reader.curves()
                except Exception as error:  # noqa: BLE001 - a thread that ended would leave out the values of all runs
                    failed.add(reader.run_id)
                    if not isinstance(error, Problem):
                        _log.exception("the events of %s cannot be read", reader.folder)
                    continue
                done.add(reader.run_id)
                self._make_room(reader)
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
            self._used.pop(reader.run_id, None)
            self._used[reader.run_id] = None
            used = [readers[run_id] for run_id in self._used if run_id in readers]
            total = sum(oldest.memory() for oldest in used)
            for oldest in used:
                if total <= MEMORY or oldest is reader:
                    break
                total -= oldest.memory()
                oldest.forget()
                self._used.pop(oldest.run_id, None)

    def publish(self, changed: set[str]) -> None:
        with self._changed:
            self.version += 1
            self._changes.append((self.version, frozenset(changed)))
            self._changed.notify_all()

    def changes_since(self, version: int) -> tuple[int, list[str]]:
        """Return the current version and the identifiers of runs that changed after `version`."""
        with self._changed:
            changes = [changed for number, changed in self._changes if number > version]
            return self.version, sorted(frozenset().union(*changes))

    # -- answers ------------------------------------------------------------------------------------------------

    def readers(self) -> dict[str, RunReader]:
        """Return the runs that have a folder, by identifier."""
        return {run_id: reader for source in self.sources for run_id, reader in list(source.runs().items())}

    def reader(self, run_id: str) -> RunReader | None:
        reader = self.readers().get(run_id)
        if reader is not None:
            self._make_room(reader)
        return reader

    def facts(self) -> dict[str, RunFacts]:
        """Return what the rows show, by identifier; a job is in the row of its run folder, if that is read."""
        facts = {run_id: reader.facts for run_id, reader in self.readers().items()}
        for source in self.sources:
            for run_id, job in list(source.jobs().items()):
                known = facts.get(run_id) or RunFacts(run_id, job.name, None, resolved=job.resolved)
                facts[run_id] = replace(known, job=job)
        return facts

    def runs(self) -> dict[str, Any]:
        """Return the answer of /api/runs."""
        now, version = self.clock(), self.version
        facts = _with_unique_names(self.facts())
        shown = [_row(run, now) for run in facts.values()]
        shown.sort(key=lambda row: (-row["values"].get("startTime", 0.0), row["name"]))
        columns = rows.columns(shown)
        rows.mark_best(shown, columns)
        names = dict.fromkeys(name for run in facts.values() for name in run.series)
        return {
            "columns": columns,
            "runs": shown,
            "charts": {"few": sections(names), "many": sections(names, together=False)},
            "sources": [{"where": source.where, "problem": source.problem} for source in self.sources],
            "version": version,
        }

    def run(self, run_id: str) -> dict[str, Any] | None:
        """Return the answer of /api/run/ID; None for an unknown run. Raises Problem."""
        facts = self.facts().get(run_id)
        return None if facts is None else details.details(facts, self.reader(run_id), self.clock())

    def job(self, run_id: str) -> dict[str, Any] | None:
        """Return the answer of /api/job/ID; None for a run without a job. Raises Problem."""
        answers = (source.job(run_id) for source in self.sources)
        return next((answer for answer in answers if answer is not None), None)

    def shown_sweeps(self) -> dict[str, ShownSweep]:
        """Return the sweeps of all sources, by identifier."""
        return {key: sweep for source in self.sources for key, sweep in source.sweeps().items()}

    def sweeps(self) -> dict[str, Any]:
        """Return the answer of /api/sweeps, the newest first."""
        shown = [*self.shown_sweeps().values()]
        shown.sort(key=lambda sweep: sweep.view.status.start_time or "", reverse=True)
        return {"sweeps": [sweep_answers.row(sweep) for sweep in shown], "version": self.version}

    def sweep(self, sweep_id: str) -> dict[str, Any] | None:
        """Return the answer of /api/sweep/ID; None for an unknown sweep."""
        sweep = self.shown_sweeps().get(sweep_id)
        return None if sweep is None else sweep_answers.details(sweep, self.facts())

    def importance(self, sweep_id: str) -> list[dict[str, Any]] | None:
        """Return the answer of /api/importance/ID, which takes seconds; None for an unknown sweep."""
        sweep = self.shown_sweeps().get(sweep_id)
        return None if sweep is None else sweep_answers.importance_of(sweep)


def _row(facts: RunFacts, now: float) -> dict[str, Any]:
    """Return the row of a run; if that fails, only the values of its job and its name."""
    try:
        return rows.row(facts, now)
    except Exception:  # noqa: BLE001 - one run must not hide all others
        _log.exception("the run %s cannot be shown", facts.folder or facts.name)
        return rows.row(RunFacts(facts.run_id, facts.name, facts.folder, job=facts.job), now)


def _with_unique_names(facts: dict[str, RunFacts]) -> dict[str, RunFacts]:
    """Name runs of the same name by the namespace of their job, or by their folders."""
    count = Counter(run.name for run in facts.values())
    return {
        run_id: replace(run, name=_longer_name(run)) if count[run.name] > 1 else run for run_id, run in facts.items()
    }


def _longer_name(facts: RunFacts) -> str:
    if facts.job is not None:
        return f"{facts.job.namespace}/{facts.job.name}"
    return facts.folder or facts.name

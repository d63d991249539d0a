"""Sources of runs: folders on this machine and in buckets. That of a cluster's jobs is in `cluster_jobs`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mptraining.board.sweep_answers import ShownSweep, read_sweep
from mptraining.runs.facts import JobFacts
from mptraining.runs.files import BucketFiles, LocalFiles
from mptraining.runs.listing import bucket_run_folders, local_run_folders
from mptraining.runs.reader import RunReader
from mptraining.sweeps.folder import SWEEP
from mptraining_api.problems import InvalidData, Problem
from mptraining_storage import storage

LOCAL_SECONDS = 0.5
BUCKET_SECONDS = 5.0
# New run folders are looked for at every second refresh.
_FIND = 2
# The problem of a source that was read and holds no run.
NO_RUNS = "no runs yet"


class Source:
    """A place with runs. `refresh` is called every `seconds` by one thread."""

    seconds = LOCAL_SECONDS

    def __init__(self, where: str) -> None:
        self.where = where
        self.problem: str | None = None
        self._runs: dict[str, RunReader] = {}
        self._sweeps: dict[str, ShownSweep] = {}

    def refresh(self) -> set[str]:
        """Read what changed; return the identifiers of the changed runs. Sets `problem`, and raises nothing."""
        raise NotImplementedError

    def start(self) -> None:
        """Follow changes from now on; called after the first `refresh`."""

    def stop(self) -> None:
        """Stop following changes."""

    def runs(self) -> Mapping[str, RunReader]:
        """Return the runs with a folder by identifier."""
        return self._runs

    def sweeps(self) -> Mapping[str, ShownSweep]:
        return self._sweeps

    def jobs(self) -> Mapping[str, JobFacts]:
        """Return the jobs of a cluster by the identifier of their row."""
        return {}

    def job(self, run_id: str) -> dict[str, Any] | None:  # noqa: ARG002
        """Return the answer of /api/job for a row of this source; None for one without a job. Raises Problem."""
        return None


class LocalRuns(Source):
    """The runs and sweeps at or below a folder on this machine."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self._top = str(storage.local_path(where)).rstrip("/") or "/"
        self._files: dict[str, tuple[RunReader, LocalFiles]] = {}
        self._touched: dict[str, tuple[int, ...]] = {}
        self._sweep_folders: list[str] = []
        self._turn = 0

    def refresh(self) -> set[str]:
        changed = self._find() if self._turn % _FIND == 0 else set()
        self._turn += 1
        problems = []
        before, self._sweeps = self._sweeps, {}
        for folder in self._sweep_folders:
            try:
                sweep = read_sweep(folder, before)
            except Problem as problem:
                problems.append(str(problem))
                continue
            self._sweeps[sweep.sweep_id] = sweep
        changed |= changed_keys(before, self._sweeps)
        for reader, files in list(self._files.values()):
            # A run that has ended changes only by a new attempt, or by a new result.
            touched = None if reader.result is None else files.touched()
            if touched is not None and self._touched.get(reader.run_id) == touched:
                continue
            try:
                if reader.refresh():
                    changed.add(reader.run_id)
            except Problem as problem:
                problems.append(str(problem))
                continue
            if touched is not None:
                self._touched[reader.run_id] = touched
        if problems:
            self.problem = problems[0]
        return changed

    def _find(self) -> set[str]:
        readers: dict[str, RunReader] = {}
        known = {reader.folder: reader for reader in self._runs.values()}
        self.problem = None
        sweeps: list[str] = []
        try:
            for folder in local_run_folders(self._top, known, {SWEEP: sweeps}):
                reader = known.get(folder)
                if reader is None:
                    files = LocalFiles(folder)
                    reader = RunReader(files, _name(self._top, folder))
                    self._files[reader.run_id] = (reader, files)
                readers[reader.run_id] = reader
        except InvalidData as problem:
            self.problem = str(problem)
        if not readers and self.problem is None:
            self.problem = NO_RUNS if os.path.isdir(self._top) else "no such folder"  # noqa: PTH112
        self._sweep_folders = sweeps
        gone = self._runs.keys() - readers.keys()
        for run_id in gone:
            del self._files[run_id]
            self._touched.pop(run_id, None)
        self._runs = readers
        return gone


class BucketRuns(Source):
    """The runs at or below a gs:// URI, by one listing for all of them."""

    seconds = BUCKET_SECONDS

    def refresh(self) -> set[str]:
        changed: set[str] = set()
        try:
            folders = bucket_run_folders(self.where)
        except Problem as problem:
            self.problem = str(problem)
            return changed
        readers: dict[str, RunReader] = {}
        failed: str | None = None
        for folder, files in folders.items():
            reader = RunReader(BucketFiles(folder, files), _name(self.where.rstrip("/"), folder))
            known = self._runs.get(reader.run_id, reader)
            known.files = reader.files
            readers[known.run_id] = known
            try:
                if known.refresh():
                    changed.add(known.run_id)
            except Problem as problem:
                failed = failed or str(problem)
        changed |= self._runs.keys() - readers.keys()
        self._runs = readers
        self.problem = failed or (None if readers else NO_RUNS)
        return changed


def changed_keys(before: Mapping[str, object], now: Mapping[str, object]) -> set[str]:
    """Return the keys whose values are not the same objects."""
    return {key for key in {*before, *now} if before.get(key) is not now.get(key)}


def _name(top: str, folder: str) -> str:
    """Return the path below the source, or the folder's own name if it is the source."""
    return folder.removeprefix(top).strip("/") or Path(folder).resolve().name or folder


def folder_source(where: str) -> Source:
    """Return the source for a path or URI. Raises InvalidData for another kind of storage."""
    return BucketRuns(where) if storage.is_remote(where) else LocalRuns(where)

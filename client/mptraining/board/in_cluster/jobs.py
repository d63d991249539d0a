"""The jobs of the cluster as the board's source, each with its run folder if that belongs to its namespace.

A run folder is known only by its job: no identifier, path or listing leads to a folder otherwise, and a job that is
deleted takes its folder off the board.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from mptraining.board.cluster_jobs import job_facts, job_page
from mptraining.board.in_cluster.files import BoundedFiles, MountedFiles, RunBucketFiles
from mptraining.board.in_cluster.job_watch import JobWatch
from mptraining.board.in_cluster.run_folders import FolderOwners
from mptraining.board.listing import Files
from mptraining.board.rows import JobFacts
from mptraining.board.run_reader import RunReader
from mptraining.cluster.api import ApiServer
from mptraining.cluster.job_view import view
from mptraining_api.kubernetes_api import Raw

_log = logging.getLogger(__name__)

REFRESH_SECONDS = 1.0
# Run folders of jobs that have not ended are read so often while somebody looks at the board, and else so often.
WATCHED_SECONDS, UNWATCHED_SECONDS = 4.0, 300.0
# A request counts for this time.
WATCHED_FOR_SECONDS = 60.0
# A folder that cannot be read is tried again after this time.
FAILED_SECONDS = 120.0
# A job's result is written before its end; a volume may show it later.
READINGS_AFTER_END = 3
# Run folders that are read: those of the newest jobs; and how many at the same time, and wait for that.
MOST_FOLDERS, _AT_ONCE, _UNDER_WAY = 2_000, 8, 64


def job_id(namespace: str, name: str) -> str:
    """Return the identifier of a job's row. The choice of a name does not lead to that of another namespace."""
    return hashlib.sha256(f"{namespace}/{name}".encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class SeenJob:
    """What the board keeps of a job. `created` is the time as the API server writes it."""

    uid: str
    facts: JobFacts
    finished: bool
    created: str


@dataclass(slots=True)
class RunFolder:
    """The run folder of a job, and when it was read: its reading under way, the time of the last one, whether that
    failed, and the number of those after the job's end that did not.

    `job` is the uid of the job and its run folder, which may change before the job starts.
    """

    job: tuple[str, str | None]
    reader: RunReader
    reading: Future[bool] | None = None
    read_at: float | None = None
    failed: bool = False
    readings_after_end: int = 0

    def is_due(self, finished: bool, now: float, *, watched: bool) -> bool:
        """Return whether to read it now; `watched` is whether somebody looks at the board."""
        if self.read_at is None:
            return True
        if self.readings_after_end >= READINGS_AFTER_END or (self.readings_after_end and self.reader.result):
            return False
        pause = FAILED_SECONDS if self.failed else WATCHED_SECONDS if watched else UNWATCHED_SECONDS
        # The last files of a job that has just ended are not waited for.
        return now - self.read_at >= pause or (finished and not self.readings_after_end and not self.failed)

    def ended(self, finished: bool, now: float) -> bool:
        """Take over a reading that has ended; return whether it found a change."""
        if self.reading is None or not self.reading.done():
            return False
        reading, self.reading, self.read_at = self.reading, None, now
        problem = reading.exception()
        if problem is not None and not self.failed:
            _log.warning("the run folder %s cannot be read: %s", self.reader.folder, problem)
        self.failed = problem is not None
        self.readings_after_end += finished and problem is None
        return problem is None and reading.result()


class NamespacedJobs:
    """The jobs of a cluster; a source of `mptraining.board.board`. `refresh` is for one thread.

    `monotonic` and `watched` (the time of the last request of any user) are in seconds of the same clock.
    """

    seconds = REFRESH_SECONDS

    def __init__(
        self,
        server: ApiServer,
        owners: FolderOwners,
        *,
        namespaces: tuple[str, ...] = (),
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        watched: Callable[[], float],
    ) -> None:
        # Whether the rows have had once all jobs that can be listed.
        self.listed = False
        # All users see this, so that it names no namespace.
        self.where = "jobs of this cluster"
        self.problem: str | None = None
        self._server = server
        self._owners = owners
        self._clock = clock
        self._monotonic = monotonic
        self._watched = watched
        self._watch = JobWatch(server.api, namespaces, self._seen, monotonic=monotonic)
        self._jobs: dict[str, JobFacts] = {}
        self._folders: dict[str, RunFolder] = {}
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="run folders")
        # Namespaces of which it was logged that a run folder does not belong to them.
        self._told: set[str] = set()

    def start(self) -> None:
        self._watch.start()

    def stop(self) -> None:
        self._watch.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def runs(self) -> Mapping[str, RunReader]:
        # A folder that was not read yet has nothing to show that its job does not.
        return {id: each.reader for id, each in list(self._folders.items()) if each.reader.listed}

    def jobs(self) -> Mapping[str, JobFacts]:
        return self._jobs

    def sweeps(self) -> None:
        return None

    def job(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the answer of /api/job; None for an unknown job. Raises Problem."""
        id = job_id(namespace, name)
        if id not in self._jobs:
            return None
        page = job_page(self._server.in_namespace(namespace), name, clock=self._clock)
        return None if page is None else page | {"run": id if id in self.runs() else None}

    def refresh(self) -> set[str]:
        """Take over the jobs that changed, and read run folders that are due; return the changed rows."""
        self.problem = "the jobs of a namespace cannot be read now; the log of the board tells why"
        if self._watch.problem is None:
            self.problem = None
        listed = self._watch.listed
        seen = self._watch.jobs()
        found = {job_id(*key): each for key, each in seen.items()}
        jobs = {id: each.facts for id, each in found.items()}
        changed = {id for id in jobs.keys() | self._jobs.keys() if jobs.get(id) != self._jobs.get(id)}
        self._keep_folders(found)
        self._jobs = jobs
        self.listed |= listed
        return changed | self._read_folders(found)

    def _seen(self, document: Raw) -> SeenJob:
        seen = view(document)
        folder = self._owners.run_folder(seen.namespace, seen.name, seen.output)
        facts = job_facts(seen, folder=folder, resolved=None, flags=())
        created = str(document["metadata"].get("creationTimestamp", ""))
        return SeenJob(seen.uid, facts, seen.finished, created)

    def _keep_folders(self, found: Mapping[str, SeenJob]) -> None:
        """Make readers for the newest jobs with a run folder of their namespace, and drop those of other jobs."""
        kept: dict[str, RunFolder] = {}
        for id, job in sorted(found.items(), key=lambda each: each[1].created, reverse=True):
            if len(kept) >= MOST_FOLDERS:
                break
            folder = self._folders.get(id)
            if folder is None or folder.job != (job.uid, job.facts.folder):
                folder = self._run_folder(id, job)
            if folder is not None:
                kept[id] = folder
        self._folders = kept

    def _run_folder(self, id: str, job: SeenJob) -> RunFolder | None:
        facts = job.facts
        if facts.folder is None:
            return None
        place = self._owners.place(facts.namespace, facts.folder)
        if place is None:
            if facts.namespace not in self._told:
                self._told.add(facts.namespace)
                text = "%s/%s: the run folder %s is of none that board.runFolders gives to this namespace: not read"
                _log.warning(text, facts.namespace, facts.name, facts.folder)
            return None
        files: Files = RunBucketFiles(place.folder)
        if place.mount:
            files = MountedFiles(place.folder, place.mount, place.path)
        return RunFolder((job.uid, facts.folder), RunReader(BoundedFiles(files), facts.name, id=id))

    def _read_folders(self, found: Mapping[str, SeenJob]) -> set[str]:
        """Begin to read the folders that are due; return those in which a reading that has ended found a change."""
        now = self._monotonic()
        watched = now - self._watched() < WATCHED_FOR_SECONDS
        changed = {id for id, each in self._folders.items() if each.ended(found[id].finished, now)}
        under_way = sum(each.reading is not None for each in self._folders.values())
        for id, each in self._folders.items():
            if under_way >= _UNDER_WAY:
                break
            if each.reading is None and each.is_due(found[id].finished, now, watched=watched):
                each.reading = self._threads.submit(each.reader.refresh)
                under_way += 1
        return changed

"""Output of a run's program, from `logs/` in its run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mptraining.display.text import with_worker_prefix
from mptraining.runs.event_files import RunEvents
from mptraining.runs.files import folder_files, stored_document
from mptraining_api import run_folder
from mptraining_api.problems import InvalidData
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.run_folder import PartName, parse_log_name
from mptraining_storage import storage
from mptraining_storage.preconditions import StoredObject

FOLLOW_SECONDS = 1.0
# A part of one worker's output.
_Part = tuple[PartName, StoredObject]


def log_lines(folder: str, *, attempt: int | None = None, worker: int | None = None) -> Iterator[str]:
    """Yield the lines of one attempt (default: the last) and worker (default: all), one worker after the other.

    Raises InvalidData if the run folder has no such output.
    """
    parts = _select(_parts(folder), attempt=attempt, worker=worker)
    if not parts:
        raise _nothing(folder, attempt, worker)
    for name, stored in parts:
        yield from _shown(name, storage.read(stored.uri))


def follow_lines(
    folder: str, *, attempt: int | None = None, worker: int | None = None, wait: Callable[[float], None]
) -> Iterator[str]:
    """Yield the lines as `log_lines`, and new ones until worker 0 of the attempt has finished.

    A run that was killed has no such end. `wait` sleeps for a number of seconds. Raises InvalidData for a folder
    without a run, and for a worker that the run does not have.
    """
    _require_worker(folder, worker)
    if not _parts(folder) and not storage.list_objects(storage.join(folder, run_folder.EVENTS)):
        raise _nothing(folder, attempt, worker)
    read: dict[str, int] = {}
    over = False
    while True:
        parts = _select(_parts(folder), attempt=attempt, worker=worker)
        for name, stored in parts:
            begin = read.get(stored.uri, 0)
            if stored.size > begin:
                content = storage.read_range(stored.uri, begin, stored.size - begin)
                complete = content[: content.rfind(b"\n") + 1]
                read[stored.uri] = begin + len(complete)
                yield from _shown(name, complete)
        if over:
            return
        # The lines of the end are written after the event: they are read once more.
        over = bool(parts) and _is_finished(folder, parts[-1][0])
        wait(FOLLOW_SECONDS)


def _require_worker(folder: str, worker: int | None) -> None:
    job = stored_document(folder, run_folder.JOB, ResolvedJob)
    if worker is not None and job is not None and worker >= job.workers:
        last = job.workers - 1
        raise InvalidData(folder, f"the run has no worker {worker}", expected=f"0 to {last}" if last else "0")


def _shown(name: PartName, content: bytes) -> Iterator[str]:
    lines = content.decode("utf-8", errors="replace").splitlines()
    return (with_worker_prefix(name.worker, line) for line in lines)


def _parts(folder: str) -> list[_Part]:
    """Return the parts of all output in the order of reading."""
    stored = storage.list_objects(storage.join(folder, run_folder.LOGS))
    return sorted(((name, part) for part in stored if (name := parse_log_name(part.uri))), key=lambda part: part[0])


def _select(parts: list[_Part], *, attempt: int | None, worker: int | None) -> list[_Part]:
    last = max((name.attempt for name, _ in parts), default=0) if attempt is None else attempt
    return [part for part in parts if part[0].attempt == last and worker in (None, part[0].worker)]


def _is_finished(folder: str, part: PartName) -> bool:
    """Return whether the chief of this part's launch has reported its end."""
    events = RunEvents(folder_files(folder))
    events.refresh(events.files.list())
    return any(columns.finished for launch, columns in events.launches() if launch[:2] == part[:2])


def _nothing(folder: str, attempt: int | None, worker: int | None) -> InvalidData:
    kept = _parts(folder)
    if not kept:
        return InvalidData(
            storage.join(folder, run_folder.LOGS),
            "the run folder holds no program output",
            next_step="The program printed nothing, or an older version trained it; see its events: mptj compare",
        )
    if worker is not None and (of_worker := _select(kept, attempt=attempt, worker=None)):
        known = sorted({name.worker for name, _ in of_worker})
        return InvalidData(folder, f"no output of worker {worker}", expected=f"one of {', '.join(map(str, known))}")
    attempts = sorted({name.attempt for name, _ in kept})
    return InvalidData(folder, f"no output of attempt {attempt}", expected=f"one of {', '.join(map(str, attempts))}")

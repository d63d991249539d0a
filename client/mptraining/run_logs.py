"""Output of a run's program, from `logs/` in its run folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mptraining.display.text import with_worker_prefix
from mptraining_api import events, run_folder
from mptraining_api.events import Finished
from mptraining_api.problems import InvalidData
from mptraining_api.resolved_job import ResolvedJob
from mptraining_storage import storage

_LOG_FILE = re.compile(r"(\d+)-(.+)-(\d+)-(\d+)\.log")
FOLLOW_SECONDS = 1.0


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """A part of one worker's output, in the order of reading."""

    attempt: int
    incarnation: str
    worker: int
    number: int
    uri: str
    size: int


def log_lines(folder: str, *, attempt: int | None = None, worker: int | None = None) -> Iterator[str]:
    """Yield the lines of one attempt (default: the last) and worker (default: all), one worker after the other.

    Raises InvalidData if the run folder has no such output.
    """
    found = _select(_parts(folder), attempt=attempt, worker=worker)
    if not found:
        raise _nothing(folder, attempt, worker)
    for part in found:
        text = storage.read(part.uri).decode("utf-8", errors="replace")
        yield from (with_worker_prefix(part.worker, line) for line in text.splitlines())


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
        found = _select(_parts(folder), attempt=attempt, worker=worker)
        for part in found:
            begin = read.get(part.uri, 0)
            if part.size > begin:
                content = storage.read_range(part.uri, begin, part.size - begin)
                complete = content[: content.rfind(b"\n") + 1]
                read[part.uri] = begin + len(complete)
                text = complete.decode("utf-8", errors="replace")
                yield from (with_worker_prefix(part.worker, line) for line in text.splitlines())
        if over:
            return
        # The lines of the end are written after the event: they are read once more.
        over = bool(found) and _is_finished(folder, found[-1])
        wait(FOLLOW_SECONDS)


def _require_worker(folder: str, worker: int | None) -> None:
    job_file = storage.join(folder, run_folder.JOB)
    if worker is None or not storage.exists(job_file):
        return
    try:
        workers = ResolvedJob.read(storage.read(job_file)).workers
    except ValueError:
        # Of another version, whose number of workers is unknown.
        return
    if worker >= workers:
        last = workers - 1
        raise InvalidData(folder, f"the run has no worker {worker}", expected=f"0 to {last}" if last else "0")


def _parts(folder: str) -> list[Part]:
    matches = (
        (each, _LOG_FILE.fullmatch(each.uri.rpartition("/")[2]))
        for each in storage.list_objects(storage.join(folder, run_folder.LOGS))
    )
    return sorted(
        Part(int(match[1]), match[2], int(match[3]), int(match[4]), each.uri, each.size)
        for each, match in matches
        if match
    )


def _select(parts: list[Part], *, attempt: int | None, worker: int | None) -> list[Part]:
    last = max((part.attempt for part in parts), default=0) if attempt is None else attempt
    return [part for part in parts if part.attempt == last and worker in (None, part.worker)]


def _is_finished(folder: str, part: Part) -> bool:
    """Return whether the chief of this part's launch has reported its end."""
    for each in storage.list_objects(storage.join(folder, run_folder.EVENTS)):
        if each.uri.rpartition("/")[2].startswith(f"{part.attempt}-{part.incarnation}-0-"):
            lines = storage.read(each.uri).decode("utf-8", errors="replace").splitlines()
            if lines and isinstance(events.parse(lines[-1]), Finished):
                return True
    return False


def _nothing(folder: str, attempt: int | None, worker: int | None) -> InvalidData:
    kept = _parts(folder)
    if not kept:
        return InvalidData(
            storage.join(folder, run_folder.LOGS),
            "the run folder holds no program output",
            next_step="The program printed nothing, or an older version trained it; see its events: mptj compare",
        )
    if worker is not None and (of_worker := _select(kept, attempt=attempt, worker=None)):
        known = sorted({part.worker for part in of_worker})
        return InvalidData(folder, f"no output of worker {worker}", expected=f"one of {', '.join(map(str, known))}")
    attempts = sorted({part.attempt for part in kept})
    return InvalidData(folder, f"no output of attempt {attempt}", expected=f"one of {', '.join(map(str, attempts))}")

"""Run folders below a folder on disk or in a bucket."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Mapping

from mptraining.runs.files import PARTS, File
from mptraining_api import run_folder
from mptraining_api.problems import InvalidData
from mptraining_storage import storage

# A tree is searched for run folders no deeper than this, and no further than so many folders.
DEPTH, FOLDERS = 8, 20_000


def local_run_folders(
    top: str, known: Container[str] = (), others: Mapping[str, list[str]] | None = None
) -> Iterator[str]:
    """Yield the run folders at or below `top`; symbolic links to folders are not followed, hidden ones not entered.

    Of the `known` run folders it is enough that they exist. The folders that hold a file of a name in
    `others` are added to its list.

    Raises InvalidData if there are more than `FOLDERS` folders.
    """
    waiting = [(top, 0)]
    seen = 0
    while waiting:
        folder, depth = waiting.pop()
        if folder in known and folder != top:
            yield folder
            continue
        seen += 1
        if seen > FOLDERS:
            step = "Name a folder that holds runs, such as runs/"
            raise InvalidData(top, f"more than {FOLDERS:,} folders: the search for runs ended", next_step=step)
        try:
            with os.scandir(folder) as entries:
                below = list(entries)
        except OSError:
            continue
        names = {entry.name for entry in below}
        for name, folders in (others or {}).items():
            if name in names:
                folders.append(folder)
        if names & {run_folder.JOB, run_folder.RESULT, run_folder.EVENTS} and is_run(folder, names):
            yield folder
            continue
        if depth < DEPTH:
            waiting += [
                (entry.path, depth + 1)
                for entry in below
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
            ]


def is_run(folder: str, names: set[str]) -> bool:
    """Return whether a folder with these names is a run; other programs have a folder `events`, too."""
    if names & {run_folder.JOB, run_folder.RESULT}:
        return True
    try:
        return any(name.endswith(".jsonl") for name in os.listdir(f"{folder}/{run_folder.EVENTS}"))  # noqa: PTH208
    except OSError:
        return False


def bucket_run_folders(top: str) -> dict[str, dict[str, File]]:
    """Return the run folders at or below a gs:// URI with the files of each, by one listing. Raises Problem."""
    objects = {stored.uri: File(stored.size, stored.version) for stored in storage.list_objects(top)}
    folders: dict[str, dict[str, File]] = {}
    for uri, file in objects.items():
        folder, part, name = _split(uri)
        if folder:
            folders.setdefault(folder, {})[f"{part}/{name}" if part else name] = file
    # Other folders have a logs/ or quarantine/, too.
    marks = (run_folder.JOB, run_folder.RESULT, f"{run_folder.EVENTS}/")
    return {folder: files for folder, files in folders.items() if any(name.startswith(marks) for name in files)}


def _split(uri: str) -> tuple[str, str, str]:
    """Return the run folder that an object belongs to by its name, the part and the name; empty for other objects."""
    folder, _, name = uri.rpartition("/")
    if name in (run_folder.JOB, run_folder.RESULT):
        return folder, "", name
    above, _, part = folder.rpartition("/")
    if part in PARTS and (part != run_folder.EVENTS or name.endswith(".jsonl")):
        return above, part, name
    return "", "", ""

"""`mptj fetch`: the run folder or the model of a job, from wherever it is.

bucket, volume mounted here ─────────────► StoredFolder ─┐
volume, worker 0 runs ─────► its pod ────► PodFolder ────┼─► FetchedFolder
volume, worker 0 has ended ► reader pod ─► PodFolder ────┤
no output.uri ─────────────► worker 0 ───► PodFolder ────┘   then worker 0 may end
"""

from __future__ import annotations

import os
import posixpath
import secrets
import shlex
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from mptraining.cluster.api import ApiServer, CommandFailed, exec_output
from mptraining.cluster.errors import ClusterProblem, NotFound, Unreachable
from mptraining.cluster.folder_source import (
    FetchedFolder,
    FolderSource,
    PodFolder,
    RemoteFile,
    StoredFolder,
    refuse_existing,
)
from mptraining.cluster.job_view import JobView, reason_text
from mptraining.cluster.logs import WorkerPod, pods
from mptraining.cluster.reader_pod import absolute_path, reader_pod, volume_of
from mptraining_api import run_folder
from mptraining_api.kubernetes_api import BATCH_JOBS
from mptraining_api.launch import FETCHED_COMMAND
from mptraining_api.problems import InvalidData
from mptraining_api.status import TRAINER_CONTAINER
from mptraining_storage import storage

_PAUSE_SECONDS = 1.0


class TransferDisplay(Protocol):
    """Shows a transfer: lines, and a bar of bytes."""

    def say(self, text: str) -> None: ...

    def total(self, bytes: int) -> None: ...

    def add(self, bytes: int) -> None: ...


class Quiet:
    """Shows nothing but messages."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say

    def total(self, bytes: int) -> None:
        """Show nothing."""

    def add(self, bytes: int) -> None:
        """Show nothing."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to fetch. `part` is a folder below the run folder (MODEL, FUNCTION), or "." for all of it."""

    job: str
    uid: str
    to: Path
    part: str
    overwrite: bool

    @property
    def what(self) -> str:
        return {run_folder.MODEL: "model", run_folder.FUNCTION: "value of its function"}.get(self.part, "run folder")


def default_target(job: str, *, model_only: bool) -> Path:
    return Path(f"{job}-model" if model_only else job)


def cache_folder(uid: str, part: str = run_folder.MODEL) -> Path:
    """Return the local folder of a part of the job with that uid, fetched from its pod while a client waited."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root, "mptraining", f"{part}s", uid)


def fetch_output(
    server: ApiServer,
    seen: JobView,
    output: str,
    wanted: Wanted,
    display: TransferDisplay,
    *,
    clock: Callable[[], float],
) -> Path:
    """Fetch from the run folder `output`: a bucket, a volume that is mounted here, or one of the job's pods.

    Raises Problem with the next step.
    """
    # Before a pod is created for nothing.
    refuse_existing(wanted.to, overwrite=wanted.overwrite)
    if wanted.part == run_folder.MODEL and seen.finished and not seen.succeeded:
        raise ClusterProblem(seen.name, f"there is no model, the job has failed: {reason_text(seen)}")
    if storage.is_remote(output) or storage.exists(storage.join(output, run_folder.JOB)):
        return fetch_stored(output, wanted, display)
    return _fetch_volume(server, seen, output, wanted, display, clock)


def fetch_stored(uri: str, wanted: Wanted, display: TransferDisplay) -> Path:
    """Fetch from the run folder `uri`, in a bucket or on this machine. Raises Problem."""
    folder = uri if wanted.part == "." else storage.join(uri, wanted.part)
    return _transfer(StoredFolder(folder), wanted, display)


def fetch_cached(wanted: Wanted, display: TransferDisplay) -> Path:
    """Copy the model that a client fetched while it waited. Raises ClusterProblem if there is none, or no more."""
    here = cache_folder(wanted.uid)
    if here.exists() and wanted.part == run_folder.MODEL:
        return _transfer(StoredFolder(str(here)), wanted, display)
    if here.exists():
        found, step = (
            "its model alone was fetched, and the rest is gone with its pod",
            f"Add --model-only, or copy {here}",
        )
    else:
        found = f"the job had no output.uri, and the pod that kept its {wanted.what} no longer exists"
        step = f"Train again with output.uri, or fetch it in time: mptj fetch {wanted.job}, Job.wait()"
    raise ClusterProblem(wanted.job, found, next_step=step)


def fetch_kept(server: ApiServer, wanted: Wanted, display: TransferDisplay, *, seconds: float = 0.0) -> Path:
    """Fetch from worker 0, which keeps the run folder of a job without output.uri; it may end then.

    The value of its function goes into the cache, since it is gone with the pod; without a model it alone is fetched.
    `seconds` is the time to wait until worker 0 serves the folder. Raises StillTraining if it keeps none.
    """
    cache = cache_folder(wanted.uid, run_folder.FUNCTION)
    value = replace(wanted, to=cache, part=run_folder.FUNCTION, overwrite=True)
    pod = worker_zero(server, wanted.uid)
    while True:
        if pod is None:
            raise _still_training(wanted)
        try:
            kept = [part for part in (value, wanted) if _files(PodFolder(server, pod.name, part.part))]
            for part in kept or [wanted]:
                folder = _transfer(PodFolder(server, pod.name, part.part), part, display)
            break
        except CommandFailed as problem:
            if "none is kept here" not in str(problem):
                raise
            if seconds <= 0:
                raise _still_training(wanted) from None
        seconds -= _PAUSE_SECONDS
        _pause(_PAUSE_SECONDS)
    # The container may end before this command returns. The folder is complete in either case.
    with suppress(CommandFailed, Unreachable):
        for _ in exec_output(server, pod.name, FETCHED_COMMAND, container=TRAINER_CONTAINER):
            pass
    return folder


class StillTraining(ClusterProblem):
    """The job has no output.uri, and its worker 0 keeps no folder yet."""


def _still_training(wanted: Wanted) -> StillTraining:
    target = default_target(wanted.job, model_only=True)
    step = f"Follow it and save its model at the end: mptj wait {wanted.job} --model {target}"
    return StillTraining(wanted.job, "it has no output.uri and has not finished training", next_step=step)


def _fetch_volume(
    server: ApiServer, seen: JobView, output: str, wanted: Wanted, display: TransferDisplay, clock: Callable[[], float]
) -> Path:
    """Fetch from a path of the job's pods: by its worker 0 while it runs, else by a pod that mounts the same volume."""
    template = _template(server, seen)
    mounted = volume_of(output, template)
    path = posixpath.normpath(posixpath.join(absolute_path(output), wanted.part))
    worker = worker_zero(server, seen.uid)
    if worker is not None:
        try:
            return _transfer(PodFolder(server, worker.name, path), wanted, display)
        except (CommandFailed, Unreachable, NotFound) as problem:
            if mounted is None or not mounted.persistent:
                raise
            display.say(f"note: {problem}")
    if mounted is None or not mounted.persistent:
        raise ClusterProblem(
            seen.name,
            f"its run folder {output} was on the disk of its pods, which have ended, and is gone with them",
            next_step="Train again with output.uri in a bucket or on a claim, or fetch it while the job runs.",
        )
    on = f"claim {mounted.claim}" if mounted.claim else f"volume {mounted.volume['name']}"
    display.say(f"a pod reads {path} from the {on}; it is deleted afterwards")
    name = f"{seen.name}-fetch-{secrets.token_hex(2)}"
    with reader_pod(server, name, seen.document, template, mounted, clock=clock, wait=_pause):
        return _transfer(PodFolder(server, name, path), wanted, display)


def worker_zero(server: ApiServer, uid: str) -> WorkerPod | None:
    """Return the pod of worker 0 of the last attempt, if it runs."""
    found = [each for each in pods(server, uid) if each.index == 0 and each.started and each.phase == "Running"]
    return found[-1] if found else None


def _template(server: ApiServer, seen: JobView) -> Mapping[str, Any]:
    attempt = seen.status.current_attempt
    if not attempt:
        step = f"See: mptj status {shlex.join([seen.name, *seen.flags])}"
        raise ClusterProblem(seen.name, "no attempt has been started: it has no run folder yet", next_step=step)
    for number in range(attempt, 0, -1):
        with suppress(NotFound):
            found: Mapping[str, Any] = server.get(BATCH_JOBS, f"{seen.name}-{number}")["spec"]["template"]
            return found
    raise ClusterProblem(
        seen.name,
        "its Indexed Jobs are deleted, so that its volume and image are not known any more",
        next_step="Mount the claim of spec.podTemplate.volumes in a pod of your own.",
    )


def _transfer(source: FolderSource, wanted: Wanted, display: TransferDisplay) -> Path:
    """Copy the files of `source` to the target."""
    files = _files(source)
    if not files:
        step = "" if wanted.part == "." else f"It is written at the end of training: mptj status {wanted.job}"
        raise ClusterProblem(wanted.job, f"there is no {wanted.what} yet", next_step=step)
    with FetchedFolder(wanted.to, overwrite=wanted.overwrite) as folder:
        display.total(sum(file.size for file in files))
        source.copy(files, folder, display.add)
        left = [file.path for file in files if file not in folder.arrived]
        if len(left) == len(files):
            raise InvalidData(wanted.job, f"all files of its {wanted.what} changed while they were fetched")
        if left:
            names = ", ".join(left[:3]) + (", …" if len(left) > 3 else "")
            display.say(f"note: {len(left)} files changed while they were fetched and are not in it: {names}")
        return folder.publish()


def _files(source: FolderSource) -> list[RemoteFile]:
    """Return the files of `source`; none if there is no such folder."""
    try:
        return source.files()
    except CommandFailed as problem:
        if "no such folder" not in str(problem):
            raise
        return []


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)

"""`mptj fetch`: the run folder or the model of a job, from wherever it is.

bucket, volume mounted here ────────────────► objects ─┐
volume, worker 0 runs ─────► its pod ───────► tar ─────┼─► a new folder, whole or not there
volume, worker 0 has ended ► a reader pod ──► tar ─────┤
no output.uri ─────────────► worker 0 ──────► tar ─────┘   then worker 0 may end
"""

from __future__ import annotations

import io
import json
import os
import posixpath
import secrets
import shlex
import shutil
import tarfile
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import google_crc32c

from mptraining.cluster.api import ApiServer, CommandFailed, exec_output
from mptraining.cluster.errors import ClusterProblem, NotFound, Unreachable
from mptraining.cluster.job_view import JobView, reason_text
from mptraining.cluster.logs import WorkerPod, pods
from mptraining.cluster.reader_pod import absolute_path, reader_pod, volume_of
from mptraining.display.transfer import Transfer
from mptraining_api import run_folder
from mptraining_api.kubernetes_api import BATCH_JOBS
from mptraining_api.launch import FETCHED_COMMAND, FILES_COMMAND, SEND_COMMAND
from mptraining_api.problems import InvalidData
from mptraining_api.status import TRAINER_CONTAINER
from mptraining_storage import storage
from mptraining_storage.local import translate_errors, user_cache
from mptraining_storage.preconditions import StoredObject

_PAUSE_SECONDS = 1.0
_THREADS = 8
# Bytes; between two updates of the progress bar.
_CHUNK = 4 * 2**20


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A fetch of a job's files. `part` is a folder below the run folder (MODEL, FUNCTION), or "." for all of it."""

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
    return user_cache(f"{part}s", uid)


def fetch_output(
    server: ApiServer,
    seen: JobView,
    output: str,
    request: FetchRequest,
    display: Transfer,
    *,
    clock: Callable[[], float],
) -> Path:
    """Fetch from the run folder `output`: a bucket, a volume that is mounted here, or one of the job's pods.

    Raises Problem with the next step.
    """
    # Before a pod is created for nothing.
    refuse_existing(request.to, overwrite=request.overwrite)
    if request.part == run_folder.MODEL:
        refuse_failed(seen)
    if storage.is_remote(output) or storage.exists(storage.join(output, run_folder.JOB)):
        return fetch_stored(output, request, display)
    return _fetch_volume(server, seen, output, request, display, clock)


def refuse_failed(seen: JobView) -> None:
    """Raise ClusterProblem if the job has failed, and so has no model."""
    if seen.finished and not seen.succeeded:
        raise ClusterProblem(seen.name, f"there is no model, the job has failed: {reason_text(seen)}")


def fetch_stored(uri: str, request: FetchRequest, display: Transfer) -> Path:
    """Fetch from the run folder `uri`, in a bucket or on this machine. Raises Problem."""
    return _fetch_objects(uri if request.part == "." else storage.join(uri, request.part), request, display)


def _fetch_objects(folder: str, request: FetchRequest, display: Transfer) -> Path:
    stored = folder if storage.is_remote(folder) else str(storage.local_path(folder))
    objects = storage.list_objects(stored)
    sizes = {file.uri.removeprefix(stored).lstrip("/"): file.size for file in objects}
    with _NewFolder(request, display, sizes) as new, ThreadPoolExecutor(_THREADS, thread_name_prefix="fetch") as pool:
        copies = [pool.submit(_copy_object, file, path, new) for file, path in zip(objects, sizes, strict=True)]
        try:
            for copy in copies:
                copy.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return request.to


def _copy_object(stored: StoredObject, path: str, new: _NewFolder) -> None:
    """Copy one object, unless it was replaced or deleted since it was listed."""
    crc = 0

    def content() -> Iterator[bytes]:
        nonlocal crc
        for start in range(0, stored.size, _CHUNK):
            data = storage.read_range(stored.uri, start, _CHUNK, version=stored.version)
            crc = google_crc32c.extend(crc, data)
            yield data
        if stored.crc32c not in (None, crc):
            mismatch = f"damaged on its way: CRC32C {crc:08x} arrived, the bucket has {stored.crc32c:08x}"
            raise InvalidData(stored.uri, mismatch, next_step="Fetch it again.")

    try:
        new.add(path, content())
    except InvalidData:
        current = storage.find(stored.uri)
        if current is not None and current.version == stored.version:
            raise


def _pod_files(server: ApiServer, pod: str, folder: str) -> dict[str, int]:
    """Return the sizes of the files in a folder of a pod by their paths; none if there is no such folder."""
    try:
        output = b"".join(exec_output(server, pod, (*FILES_COMMAND, folder), container=TRAINER_CONTAINER))
        lines = output.decode("utf-8", errors="replace").splitlines()
        return {str(file["path"]): int(file["size"]) for file in map(json.loads, lines)}
    except CommandFailed as problem:
        if "no such folder" not in str(problem):
            raise
        return {}
    except (ValueError, KeyError, TypeError):
        raise _no_folder(pod, "its list of files cannot be read") from None


def _fetch_pod(server: ApiServer, pod: str, folder: str, request: FetchRequest, display: Transfer) -> Path:
    """Fetch a folder of a pod as `kubectl cp` does: a command there writes a tar, which is unpacked here."""
    with _NewFolder(request, display, _pod_files(server, pod, folder)) as new:
        output = exec_output(server, pod, (*SEND_COMMAND, folder), container=TRAINER_CONTAINER)
        try:
            with tarfile.open(fileobj=io.BufferedReader(_Stream(output)), mode="r|") as tar:
                for member in tar:
                    content = tar.extractfile(member) if member.isreg() else None
                    if content is None:
                        # The pod runs the user's program, which may have replaced the command: it must not create
                        # links or devices.
                        raise _no_folder(pod, f"{member.name!r} is not a file")
                    new.add(member.name, iter(partial(content.read, _CHUNK), b""))
        except tarfile.TarError as error:
            raise _no_folder(pod, str(error)) from None
        # The exit code arrives after the archive.
        deque(output, maxlen=0)
    return request.to


def _no_folder(pod: str, cause: str) -> ClusterProblem:
    step = "Check what the job runs before you open any of its files."
    return ClusterProblem(pod, f"it did not send a folder: {cause}", next_step=step)


class _Stream(io.RawIOBase):
    """The output of a command as a stream that can be read once."""

    def __init__(self, output: Iterator[bytes]) -> None:
        self._output = output
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` from one piece of the output; 0 at its end."""
        # The kubelet begins with an empty frame, which is not the end.
        self._rest = self._rest or next(filter(None, self._output), b"")
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


def refuse_existing(target: Path, *, overwrite: bool) -> None:
    """Raise InvalidData if `target` exists, unless it is to be replaced."""
    if os.path.lexists(target) and not overwrite:
        step = "Replace it with --overwrite, or name another folder with --to."
        raise InvalidData(str(target), "exists", next_step=step)


class _NewFolder:
    """Context manager for the target, which gets its name when all files are in it; after an error nothing is left.

    `sizes` are the files of the source by path. Raises ClusterProblem if it has none, InvalidData if the target exists,
    unless it is to be replaced, and StorageFull if the disk is full.
    """

    def __init__(self, request: FetchRequest, display: Transfer, sizes: Mapping[str, int]) -> None:
        refuse_existing(request.to, overwrite=request.overwrite)
        if not sizes:
            step = "" if request.part == "." else f"It is written at the end of training: mptj status {request.job}"
            raise ClusterProblem(request.job, f"there is no {request.what} yet", next_step=step)
        self.sizes = sizes
        self._request = request
        self._display = display
        self._arrived: set[str] = set()

    def __enter__(self) -> Self:
        target = self._request.to
        with translate_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            # A folder can only be renamed on one disk, so this one is next to the target.
            self._scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
            self._files = self._scratch / "files"
            self._files.mkdir()
        self._display.total(sum(self.sizes.values()))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._publish()
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def add(self, path: str, content: Iterable[bytes]) -> None:
        """Write one file; threads may call it.

        Raises InvalidData for a path outside of the folder: neither a bucket nor a pod may write to other files.
        """
        file = Path(os.path.normpath(self._files / path))
        if Path(path).is_absolute() or not file.is_relative_to(self._files) or file == self._files:
            raise InvalidData(path, "is outside of the folder", next_step="Check what the job runs before you open it.")
        unfinished = self._scratch / f"unfinished-{threading.get_ident()}"
        with translate_errors(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            with unfinished.open("wb") as opened:
                for data in content:
                    opened.write(data)
                    self._display.add(len(data))
            unfinished.replace(file)
        self._arrived.add(path)

    def _publish(self) -> None:
        job, target = self._request.job, self._request.to
        changed = [path for path in self.sizes if path not in self._arrived]
        if not self._arrived:
            raise InvalidData(job, f"all files of its {self._request.what} changed while they were fetched")
        if changed:
            names = ", ".join(changed[:3]) + (", …" if len(changed) > 3 else "")
            self._display.say(f"note: {len(changed)} files changed while they were fetched and are not in it: {names}")
        with translate_errors(target):
            if os.path.lexists(target):
                target.replace(self._scratch / "old")
            self._files.replace(target)


def fetch_cached(request: FetchRequest, display: Transfer) -> Path:
    """Copy the model that a client fetched while it waited. Raises ClusterProblem if there is none, or no more."""
    here = cache_folder(request.uid)
    if here.exists() and request.part == run_folder.MODEL:
        return _fetch_objects(str(here), request, display)
    if here.exists():
        explanation, step = (
            "its model alone was fetched, and the rest is gone with its pod",
            f"Add --model-only, or copy {here}",
        )
    else:
        explanation = f"the job had no output.uri, and the pod that kept its {request.what} no longer exists"
        step = f"Train again with output.uri, or fetch it in time: mptj fetch {request.job}, Job.wait()"
    raise ClusterProblem(request.job, explanation, next_step=step)


def fetch_kept(server: ApiServer, request: FetchRequest, display: Transfer, *, seconds: float = 0.0) -> Path:
    """Fetch from worker 0, which keeps the run folder of a job without output.uri; it may end then.

    The value of its function goes into the cache, since it is gone with the pod; without a model it alone is fetched.
    `seconds` is the time to wait until worker 0 serves the folder. Raises StillTraining if it keeps none.
    """
    cache = cache_folder(request.uid, run_folder.FUNCTION)
    value = replace(request, to=cache, part=run_folder.FUNCTION, overwrite=True)
    pod = worker_zero(server, request.uid)
    while True:
        if pod is None:
            raise _still_training(request)
        try:
            kept = [part for part in (value, request) if _pod_files(server, pod.name, part.part)]
            for part in kept or [request]:
                folder = _fetch_pod(server, pod.name, part.part, part, display)
            break
        except CommandFailed as problem:
            if "none is kept here" not in str(problem):
                raise
            if seconds <= 0:
                raise _still_training(request) from None
        seconds -= _PAUSE_SECONDS
        _pause(_PAUSE_SECONDS)
    # The container may end before this command returns. The folder is complete in either case.
    with suppress(CommandFailed, Unreachable):
        for _ in exec_output(server, pod.name, FETCHED_COMMAND, container=TRAINER_CONTAINER):
            pass
    return folder


class StillTraining(ClusterProblem):
    """The job has no output.uri, and its worker 0 keeps no folder yet."""


def _still_training(request: FetchRequest) -> StillTraining:
    target = default_target(request.job, model_only=True)
    step = f"Follow it and save its model at the end: mptj wait {request.job} --model {target}"
    return StillTraining(request.job, "it has no output.uri and has not finished training", next_step=step)


def _fetch_volume(
    server: ApiServer,
    seen: JobView,
    output: str,
    request: FetchRequest,
    display: Transfer,
    clock: Callable[[], float],
) -> Path:
    """Fetch from a path of the job's pods: by its worker 0 while it runs, else by a pod that mounts the same volume."""
    template = _template(server, seen)
    mounted = volume_of(output, template)
    path = posixpath.normpath(posixpath.join(absolute_path(output), request.part))
    worker = worker_zero(server, seen.uid)
    if worker is not None:
        try:
            return _fetch_pod(server, worker.name, path, request, display)
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
        return _fetch_pod(server, name, path, request, display)


def worker_zero(server: ApiServer, uid: str) -> WorkerPod | None:
    """Return the pod of worker 0 of the last attempt, if it runs."""
    running = [pod for pod in pods(server, uid) if pod.index == 0 and pod.started and pod.phase == "Running"]
    return running[-1] if running else None


def _template(server: ApiServer, seen: JobView) -> Mapping[str, Any]:
    attempt = seen.status.current_attempt
    if not attempt:
        step = f"See: mptj status {shlex.join([seen.name, *seen.flags])}"
        raise ClusterProblem(seen.name, "no attempt has been started: it has no run folder yet", next_step=step)
    for number in range(attempt, 0, -1):
        with suppress(NotFound):
            template: Mapping[str, Any] = server.get(BATCH_JOBS, f"{seen.name}-{number}")["spec"]["template"]
            return template
    raise ClusterProblem(
        seen.name,
        "its Indexed Jobs are deleted, so that its volume and image are not known any more",
        next_step="Mount the claim of spec.podTemplate.volumes in a pod of your own.",
    )


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)

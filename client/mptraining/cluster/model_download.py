"""Download of the trained model from the bucket, a mounted folder or worker 0's pod.

Without a run folder worker 0 keeps the model for a while (`mptraining_trainer.export.model_server`). It is sent as a
tar over `pods/exec`, which needs no port and no change of the job's NetworkPolicy; its SHA-256 is verified before the
pod is released. `trained_model` loads it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mptraining.cluster.api import ApiServer, CommandFailed, exec_command
from mptraining.cluster.errors import ClusterProblem, Unreachable
from mptraining.cluster.logs import WorkerPod, pods
from mptraining_api import run_folder
from mptraining_api.launch import MODEL_COMMAND, MODEL_FETCHED_COMMAND
from mptraining_api.problems import InvalidData
from mptraining_api.status import TRAINER_CONTAINER

_TRIES = 3
_PAUSE_SECONDS = 1.0
_ABOUT = "model.json"


def from_run_folder(output: str, folder: Path) -> Path:
    """Copy `model/` of the run folder `output` to `folder` and return it. Raises InvalidData, StorageUnavailable."""
    from mptraining_records.storage import storage

    source = storage.join(output, run_folder.MODEL)
    if not storage.is_remote(output) and not Path(output).is_dir():
        raise InvalidData(
            output,
            "is a folder of the job's pods and not of this machine",
            expected="a bucket, or the same volume mounted here",
            next_step="Mount it here, or start a pod that mounts it and copy it from there: docs/guide/kubernetes.md, "
            f"reader.yaml (kubectl cp reader:{source} {folder})",
        )
    if not storage.exists(storage.join(source, _ABOUT)):
        raise InvalidData(source, "holds no model", expected=_ABOUT, next_step="It is written at the end of training.")
    with _atomic_folder(folder) as part:
        for each in storage.list_objects(source):
            # An object name with `..` must not write outside the folder: write access to the bucket is not write
            # access to this machine.
            path = Path(os.path.normpath(part / each.uri.removeprefix(source).lstrip("/")))
            if not path.is_relative_to(part):
                raise InvalidData(each.uri, "is outside the model's folder", next_step="Delete that object.")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(storage.read(each.uri))
    return folder


def cache_folder(uid: str) -> Path:
    """Return the local cache folder for the model of the job with that uid, fetched from its pod."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root, "mptraining", "models", uid)


def copy_folder(source: Path, folder: Path) -> Path:
    """Copy the files of `source` to `folder` and return it."""
    with _atomic_folder(folder) as part:
        shutil.copytree(source, part, dirs_exist_ok=True)
    return folder


def from_pod(
    server: ApiServer,
    pod: WorkerPod,
    folder: Path,
    *,
    timeout: float = 0.0,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """Fetch the model that `pod` keeps to `folder`, then release the pod.

    `timeout` is the number of seconds to wait until the pod has the model ready. Raises CommandFailed if it has none,
    another ClusterProblem if the request fails.
    """
    broken = 0
    while True:
        try:
            _receive(server, pod, folder)
            break
        except CommandFailed:
            if timeout <= 0:
                raise
            timeout -= _PAUSE_SECONDS
            threading.Event().wait(_PAUSE_SECONDS)
        except Unreachable as problem:
            # The connection broke during the transfer; the pod still has the model.
            broken += 1
            if broken == _TRIES:
                raise
            say(f"warning: {problem} The model is fetched again.")
    # The released container may end before this command returns. The model is complete in either case.
    with suppress(CommandFailed, Unreachable):
        exec_command(server, pod.name, MODEL_FETCHED_COMMAND, container=TRAINER_CONTAINER, write=lambda some: None)
    return folder


def pod_with_model(server: ApiServer, uid: str) -> WorkerPod | None:
    """Return the pod that may keep the job's model: worker 0 of the last attempt, if it is running."""
    found = [each for each in pods(server, uid) if each.index == 0 and each.started and each.phase == "Running"]
    return found[-1] if found else None


def _receive(server: ApiServer, pod: WorkerPod, folder: Path) -> None:
    with tempfile.TemporaryFile() as archive:
        digest = hashlib.sha256()

        def write(some: bytes) -> None:
            digest.update(some)
            archive.write(some)

        errors = exec_command(server, pod.name, MODEL_COMMAND, container=TRAINER_CONTAINER, write=write)
        expected = errors.split()[-1] if errors.split() else "nothing"
        if digest.hexdigest() != expected:
            message = f"{digest.hexdigest()} arrived, {expected} was sent"
            raise Unreachable(pod.name, f"the model was damaged on its way: SHA-256 {message}.")
        archive.seek(0)
        try:
            with _atomic_folder(folder) as part, tarfile.open(fileobj=archive, mode="r:") as tar:
                # The pod runs the user's program and is not trusted: filter="data" writes nothing outside the folder.
                tar.extractall(part, filter="data")
        except tarfile.TarError as error:
            raise ClusterProblem(
                pod.name,
                f"it did not send a model: {error}",
                next_step="Check what the job runs before you open any of its files.",
            ) from None


@contextmanager
def _atomic_folder(folder: Path) -> Iterator[Path]:
    """Create a folder atomically, by a rename at the end; replaces an existing one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield part
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    if folder.exists():
        shutil.rmtree(folder)
    part.chmod(0o755)
    part.replace(folder)


def model_unavailable(name: str, *, finished: bool) -> ClusterProblem:
    """Return the error for a model that is no longer available, or not available yet."""
    if finished:
        return ClusterProblem(
            name,
            "the job had no output.uri, and the pod that kept its model no longer exists",
            next_step="Train again with output.uri, or fetch it in time: Job.wait(), `mptj wait NAME --model FOLDER`.",
        )
    return ClusterProblem(name, "no worker keeps a model yet", next_step=f"Wait for the end: mptj wait {name}")

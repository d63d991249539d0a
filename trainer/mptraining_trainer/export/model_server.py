"""A model that has no run folder: worker 0 keeps it in its pod until somebody fetches it, or the time is up.

    train ──► the process becomes `keep` ──► exit code 0        TensorFlow's memory and accelerators are free by then
                     ▲
    `model`          reads the folder, tar on standard output, its SHA-256 on standard error
    `model-fetched`  lets it go

Clients run the verbs `model` and `model-fetched` in the pod by `pods/exec`.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from mptraining_api import run_folder
from mptraining_api.launch import MODEL_WAIT_SECONDS, MODEL_WAITS, WorkerIdentity
from mptraining_api.problems import InvalidData, InvalidSpec
from mptraining_api.resolved_job import ResolvedJob

if TYPE_CHECKING:
    from mptraining_trainer.reporting.telemetry import Telemetry

# As the contract says: long enough for a person who watches, short enough for a machine that is paid for.
DEFAULT_SECONDS = 600.0
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


def seconds(job: ResolvedJob, identity: WorkerIdentity, environment: Mapping[str, str]) -> float:
    """How long this process is to keep the model after a success; 0 for all but worker 0 of a job without output.

    Raises InvalidSpec for a setting that is no number.
    """
    text = environment.get(MODEL_WAIT_SECONDS, "")
    try:
        asked = float(text) if text else DEFAULT_SECONDS
    except ValueError:
        raise InvalidSpec(MODEL_WAIT_SECONDS, f"{text!r}", expected="a number of seconds") from None
    return max(0.0, asked) if identity.is_chief and job.output is None else 0.0


def announce(telemetry: Telemetry, job: ResolvedJob, wait: float) -> None:
    """Who follows the log fetches the model now."""
    telemetry.notice(
        MODEL_WAITS,
        f"no output.uri: the model is kept {wait:g} s to be fetched, by `mptj wait {job.name} --model FOLDER` or "
        "Job.model()",
    )


def keep(folder: str, wait: float) -> NoReturn:
    """Becomes the process that waits."""
    # Signals that are blocked stay so over exec: none is lost in between.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(  # noqa: S606 - no shell is wanted
        sys.executable, [sys.executable, "-m", "mptraining_trainer", "keep", folder, f"{wait:g}"]
    )


def wait_here(folder: str, wait: float) -> None:
    """Returns when the model was fetched, when this process is told to leave, or after `wait` seconds."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    file = _file()
    part = file.with_suffix(".part")
    part.write_text(json.dumps({"pid": os.getpid(), "folder": folder}), encoding="utf-8")
    part.replace(file)
    try:
        signal.sigtimedwait(_SIGNALS, wait)
    finally:
        file.unlink(missing_ok=True)


def send(stream: BinaryIO) -> str:
    """Writes the kept model as a tar; returns the SHA-256 of its bytes. Raises InvalidData when none is kept here."""
    folder = Path(_kept()["folder"], run_folder.MODEL)
    digest = _Digest(stream)
    with tarfile.open(fileobj=digest, mode="w|", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                tar.add(path, path.relative_to(folder).as_posix(), recursive=False)
    stream.flush()
    return digest.hexadecimal()


def let_go() -> None:
    """The model is with whoever wanted it. Raises InvalidData when none is kept here."""
    os.kill(int(_kept()["pid"]), signal.SIGUSR1)


class _Digest:
    """Passes on what is written, and knows its SHA-256."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._sum = hashlib.sha256()

    def write(self, some: bytes) -> int:
        self._sum.update(some)
        return self._stream.write(some)

    def hexadecimal(self) -> str:
        return self._sum.hexdigest()


def _file() -> Path:
    return Path(tempfile.gettempdir(), "mptraining-model.json")


def _kept() -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads(_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InvalidData("model", "none is kept here", expected="worker 0 after a success, without output") from None
    return found

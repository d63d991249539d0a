"""Folder of a sweep on this machine: the sweep with its status, and the jobs of its trials.

    sweep.json           the MPTrainingSweep with its status, as the API server has it on a cluster
    jobs/<name>.json     the job of a trial: it exists from here on, whatever becomes of its processes
    trials/<number>/     the run folders, if output.uri names no bucket
    sweep.lock           held by the driver

Every file is written to a temporary name, flushed, and renamed.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, Literal

from pydantic import ValidationError

from mptraining_api.model import AnyNumber, Model
from mptraining_api.problems import InvalidData, InvalidSpec
from mptraining_api.sweep.spec import MPTrainingSweep
from mptraining_api.sweep.status import SweepStatus
from mptraining_storage import local

SWEEP = "sweep.json"
# `is_driven` holds the lock for a moment, so that a driver tries more than once.
_TRIES, _TRY_SECONDS = 5, 0.1


class JobEnd(Model):
    """The end of a trial's job; `metrics` are the last values of its run, `time` is in seconds since 1970."""

    state: Literal["Succeeded", "Failed"]
    time: float
    message: str = ""
    metrics: dict[str, AnyNumber] | None = None


class JobRecord(Model):
    """The job of a trial: its document, when it was created (seconds since 1970), and its end."""

    document: dict[str, Any]
    created: float
    end: JobEnd | None = None

    @property
    def name(self) -> str:
        return str(self.document["metadata"]["name"])


class SweepFolder:
    """The files of a sweep. `path` need not exist before the first write."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[MPTrainingSweep, SweepStatus] | None:
        """Return the sweep and its status; None before the first write. Raises InvalidData."""
        file = self.path / SWEEP
        if not file.is_file():
            return None
        try:
            document = json.loads(local.read(file))
            status = SweepStatus.read(json.dumps(document.pop("status", {})))
            return MPTrainingSweep.read(json.dumps(document)), status
        except (ValueError, AttributeError):
            step = "Restore it, or delete the folder: the sweep then begins again."
            raise InvalidData(str(file), "is no sweep", next_step=step) from None

    def write(self, sweep: MPTrainingSweep, status: SweepStatus) -> None:
        document = sweep.to_document() | {"status": status.to_document()}
        local.write(self.path / SWEEP, json.dumps(document, indent=1).encode())

    def jobs(self) -> dict[str, JobRecord]:
        """Return the jobs of the trials by name. Raises InvalidData for a damaged file."""
        jobs = {}
        for file in sorted((self.path / "jobs").glob("*.json")):
            try:
                record = JobRecord.read(local.read(file))
            except ValidationError:
                step = "Delete it: its trial then counts as failed."
                raise InvalidData(str(file), "is no job of a trial", next_step=step) from None
            jobs[record.name] = record
        return jobs

    def write_job(self, record: JobRecord) -> None:
        local.write(self._job_file(record.name), record.to_json().encode())

    def delete_job(self, name: str) -> None:
        self._job_file(name).unlink(missing_ok=True)

    def _job_file(self, name: str) -> Path:
        return self.path / "jobs" / f"{name}.json"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for one driver; the lock ends with the process, however that ends.

        Raises InvalidSpec if another driver has it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path / "sweep.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise InvalidSpec(str(self.path), error.strerror or str(error)) from None
        try:
            if not any(_locked(file, fcntl.LOCK_EX) or Event().wait(_TRY_SECONDS) for _ in range(_TRIES)):
                step = "Wait for its end, or stop it with Ctrl-C; `mptj sweep status` shows it."
                raise InvalidSpec(str(self.path), "another process runs the sweep here", next_step=step)
            yield
        finally:
            os.close(file)

    def is_driven(self) -> bool:
        """Return whether a driver is at work here."""
        try:
            file = os.open(self.path / "sweep.lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return not _locked(file, fcntl.LOCK_SH)
        finally:
            os.close(file)


def _locked(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def is_sweep_folder(path: Path) -> bool:
    return (path / SWEEP).is_file()

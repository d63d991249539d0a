"""Whose run folder it is: refused while it is another job's, claimed once nothing stands against training."""

from __future__ import annotations

from mptraining_api import run_folder
from mptraining_api.problems import ResumeRefused
from mptraining_api.resolved import ResolvedJob
from mptraining_records import storage
from mptraining_trainer.checkpoint import checkpoints
from mptraining_trainer.worker import Worker


def refuse_foreign_folder(worker: Worker) -> None:
    """Raises ResumeRefused when the run folder is another job's, and leaves no trace in it."""
    uri = storage.join(worker.folder, run_folder.JOB)
    if storage.exists(uri):
        other = run_folder.difference(ResolvedJob.read(storage.read(uri)), worker.job)
        if other is not None:
            worker.telemetry.forget_output()
            raise ResumeRefused(
                worker.folder,
                f"the run folder of another job: {other}",
                next_step="Give another output folder, or delete it.",
            )


def claim_folder(worker: Worker) -> None:
    """The chief writes job.json, and begins anew where the job says so."""
    uri = storage.join(worker.folder, run_folder.JOB)
    if worker.seat.is_chief:
        storage.write(uri, worker.job.to_json().encode())
        if worker.job.training and worker.job.training.resume == "Never":
            old = storage.join(worker.folder, run_folder.CHECKPOINTS)
            if checkpoints(old):
                worker.telemetry.notice("CheckpointsDeleted", "training.resume: Never; the folder's old ones are gone")
                storage.delete_prefix(old)

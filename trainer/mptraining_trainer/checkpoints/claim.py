"""Ownership of the run folder: refused if it belongs to another job, claimed when training can begin."""

from __future__ import annotations

from dataclasses import replace

from mptraining_api import run_folder
from mptraining_api.problems import ResumeRefused
from mptraining_api.resolved_job import ResolvedJob
from mptraining_storage import storage
from mptraining_trainer import fence
from mptraining_trainer.checkpoints.state import checkpoints
from mptraining_trainer.worker import Worker


def refuse_foreign_folder(worker: Worker) -> None:
    """Raise ResumeRefused, without a write to the run folder, if it belongs to another job."""
    uri = storage.join(worker.folder, run_folder.JOB)
    if storage.exists(uri):
        other = run_folder.difference(ResolvedJob.read(storage.read(uri)), worker.job)
        if other is not None:
            worker.telemetry.disable_output()
            raise ResumeRefused(
                worker.folder,
                f"the run folder of another job: {other}",
                next_step=run_folder.ANOTHER_SWEEP if worker.job.sweep else "Give another output folder, or delete it.",
            )


def claim_folder(worker: Worker) -> Worker:
    """On the chief, claim the folder, write job.json, and delete old checkpoints under `resume: Never`.

    Return the worker with its fence. Raise Superseded if a newer attempt has claimed the folder.
    """
    if not worker.identity.is_chief:
        return worker
    kept = storage.join(worker.folder, run_folder.CHECKPOINTS)
    claimed = fence.claim(kept, worker.identity)
    storage.write(storage.join(worker.folder, run_folder.JOB), worker.job.to_json().encode())
    if worker.job.training and worker.job.training.resume == "Never":
        if checkpoints(kept):
            worker.telemetry.notice("CheckpointsDeleted", "training.resume: Never; the old checkpoints are deleted")
        below = {stored.uri.removeprefix(f"{kept}/").partition("/")[0] for stored in storage.list_objects(kept)}
        for name in sorted(below - {fence.FENCE}):
            storage.delete_prefix(storage.join(kept, name))
    return replace(worker, fence=claimed)

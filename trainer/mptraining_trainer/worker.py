"""The context of one worker's run: job, identity, telemetry, run folder."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field

from mptraining_api.launch import WorkerIdentity
from mptraining_api.resolved_job import ResolvedJob
from mptraining_storage.outbox import Outbox
from mptraining_trainer.devices.preemption import Preemption
from mptraining_trainer.fence import Fence
from mptraining_trainer.report.scalar_writer import ScalarWriter
from mptraining_trainer.report.telemetry import Telemetry


@dataclass(frozen=True)
class Worker:
    """The job, this process's identity, telemetry, run folder and cleanup callbacks.

    The chief has a fence after it has claimed the folder.
    """

    job: ResolvedJob
    identity: WorkerIdentity
    telemetry: Telemetry
    preemption: Preemption
    folder: str
    progress_seconds: float
    # Closed when the run ends, after success and failure alike.
    exit_stack: ExitStack
    fence: Fence | None = None
    # The chief's TensorBoard scalars.
    scalars: ScalarWriter | None = None
    # Through it, all files of the run reach the run folder while training continues.
    outbox: Outbox = field(default_factory=Outbox)

"""A job on this machine: where its paths point, what it can compute on, and whether its folder is its own.

In the job file a path that is no URI and not absolute counts from the file's own folder, wherever `mptj` is
called; `--output` counts from the current folder, as everything typed in a shell does; without both the run
folder is `runs/<name>` in the current folder. The program's code stands beside the job file, or in `source/`
there; see `source_folder`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mptraining_api.launch import INCARNATION, INDEX, PROGRESS_SECONDS, SOURCE_FOLDER, Launch
from mptraining_api.outcomes import SUCCEEDED
from mptraining_api.resolved_job import ResolvedJob, ResolvedTraining
from mptraining_api.run_folder import Result
from mptraining_api.spec import JobSpec, MPTrainingJob
from mptraining_api.spec_output import Output

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_EVENTS_FILE = re.compile(r"(\d+)-.+-\d+-\d+\.jsonl")


def absolute(path: str, folder: Path) -> str:
    """`path` seen from `folder`; URIs and absolute paths stay."""
    return path if _SCHEME.match(path) else os.path.normpath(folder / path)


def at_home(job: MPTrainingJob, *, folder: Path, output: str) -> MPTrainingJob:
    """The same job with every path absolute. `folder` is the job file's, `output` the run folder where the
    job names none; both absolute.
    """
    spec = job.spec
    data = spec.data
    if data is not None:
        data = data.model_copy(
            update={
                "train": [absolute(each, folder) for each in data.train],
                "validation": data.validation and [absolute(each, folder) for each in data.validation],
            }
        )
    program, application = spec.program, spec.program.application
    if application is not None and application.weights not in (None, "none", "imagenet"):
        weights = absolute(application.weights or "", folder)
        program = program.model_copy(update={"application": application.model_copy(update={"weights": weights})})
    uri = absolute(spec.output.uri, folder) if spec.output else output
    update = {"data": data, "program": program, "output": Output(uri=uri)}
    return job.model_copy(update={"spec": spec.model_copy(update=update)})


def with_output(job: MPTrainingJob, uri: str) -> MPTrainingJob:
    """The same job with another run folder."""
    return job.model_copy(update={"spec": job.spec.model_copy(update={"output": Output(uri=uri)})})


def source_folder(job: ResolvedJob | JobSpec, folder: Path) -> Path:
    """Where the program's code is; `folder` is the job file's.

    A job with `spec.source` keeps what its ConfigMap or archive is made of in `source/` beside the job file; where
    there is no such folder, and without `spec.source`, the code stands beside the job file itself.
    """
    below = folder / "source"
    return below if job.source is not None and below.is_dir() else folder


@dataclass(frozen=True, slots=True)
class Machine:
    """Which accelerators this machine has."""

    gpu: bool
    tpu: bool

    def lacks(self, kind: Literal["cpu", "gpu", "tpu"]) -> bool:
        return (kind == "gpu" and not self.gpu) or (kind == "tpu" and not self.tpu)


def this_machine() -> Machine:
    """Asks the kernel's device files; no driver is loaded."""
    return Machine(
        gpu=Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidia0").exists(),
        tpu=any(Path("/dev").glob("accel*")) or any(Path("/dev/vfio").glob("[0-9]*")),
    )


def latest_attempt(names: list[str]) -> int:
    """The highest attempt among the names of a run folder's events files; 0 when there is none."""
    matches = (_EVENTS_FILE.fullmatch(name.rpartition("/")[2]) for name in names)
    return max((int(match[1]) for match in matches if match), default=0)


def already_finished(before: ResolvedJob, result: Result, attempt: int, now: ResolvedJob) -> bool:
    """Whether `result` is the end of the folder's last attempt and `now` asks for no more than it reached."""
    # A later attempt that did not end leaves the result of an earlier one behind.
    if result.reason != SUCCEEDED.reason or result.attempt < attempt:
        return False
    if now.training is None or before.training is None:
        return now.training is before.training
    return now.training.resume != "Never" and _reached(before.training, result.step, now.training)


def _reached(before: ResolvedTraining, step: int | None, now: ResolvedTraining) -> bool:
    if now.total_steps is not None:
        return step is not None and step >= now.total_steps
    if before.epochs is None or now.epochs is None or before.steps_per_epoch != now.steps_per_epoch:
        return False
    return now.epochs <= before.epochs


def inherited_environment(job: ResolvedJob, environment: Mapping[str, str]) -> dict[str, str]:
    """What the workers inherit of this process's environment."""
    kept = dict(environment)
    if job.keras == "Keras3":
        # It decides what tf.keras is, and is the job's to say.
        kept.pop("TF_USE_LEGACY_KERAS", None)
    if job.accelerator.kind == "cpu" and job.program.script is not None and job.replicas_per_process > 1:
        # TensorFlow 2.21's oneDNN aborts in MklMaxPoolingGradOp ("int32 expected, got float") for tensorflow-cloud's
        # mnist example on two CPU devices, under plain MirroredStrategy too.
        kept.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    return kept


def worker_environment(
    launch: Launch, index: int, *, inherited: dict[str, str], incarnation: str, folder: Path, gpus: int | None
) -> dict[str, str]:
    """The environment of worker `index`.

    `gpus` is the number of GPUs of each of several workers, which must not share them on one machine; None
    for one worker, or without GPUs.
    """
    # Somebody is watching: a bar that moves, and curves with enough points for a run of seconds.
    environment = {PROGRESS_SECONDS: "0.5"} | inherited | launch.environment
    environment |= {INDEX: str(index), INCARNATION: incarnation, SOURCE_FOLDER: str(folder)}
    if len(launch.hosts) > 1:
        # A proxy for the internet must not stand between two workers of one machine: it makes them hang.
        environment["no_grpc_proxy"] = ",".join(filter(None, [inherited.get("no_grpc_proxy"), "127.0.0.1"]))
        environment["no_proxy"] = ",".join(filter(None, [inherited.get("no_proxy"), "127.0.0.1"]))
    if gpus is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(str(index * gpus + each) for each in range(gpus))
    return environment

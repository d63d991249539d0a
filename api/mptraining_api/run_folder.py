"""What stands in a run folder, and whose run it is.

Everything that compares, resumes, explains or draws a run reads this folder and nothing else.
"""

from __future__ import annotations

import re
from typing import Literal

from mptraining_api.events import Recovery, Trial
from mptraining_api.model import Model
from mptraining_api.resolved_job import ResolvedJob

JOB = "job.json"
EVENTS = "events"
CHECKPOINTS = "checkpoints"
MODEL = "model"
TENSORBOARD = "tensorboard"
# What the callbacks of a function program write, TensorBoard apart.
CALLBACKS = "callbacks"
QUARANTINE = "quarantine"
RESULT = "result.json"


class Best(Model):
    """The weights that `export.checkpoint: Best` exported: those of this step, with the best value of `monitor`."""

    monitor: str
    mode: Literal["min", "max"]
    step: int
    value: float


class Result(Model):
    """How the run ended; `result.json`, written last. Times in seconds, memory in bytes of the chief's process."""

    version: int = 1
    name: str
    reason: str
    exit_code: int
    message: str
    attempt: int
    step: int | None
    metrics: dict[str, float]
    strategy: str
    precision: str
    keras: str
    workers: int
    replicas_in_sync: int
    global_batch_size: int | None
    # Median over the attempt's executions, without the first, which compiles.
    step_seconds: float | None
    examples_per_second: float | None
    input_bound_percent: float | None
    # What the chief's process fetched from buckets, and how long its first batch of records took.
    input_bytes: int | None = None
    input_requests: int | None = None
    input_retries: int | None = None
    first_record_seconds: float | None = None
    training_seconds: float | None
    seconds: float
    peak_memory_bytes: int
    skipped_steps: int
    # Damaged records that the chief's process met, of training and validation.
    skipped_records: int = 0
    recoveries: int
    # Each of them; `precision` above is the policy in force at the end.
    recovered: tuple[Recovery, ...] = ()
    # Of the last step; None without loss scaling, and when it was not finite.
    loss_scale: float | None = None
    gradient_norm: float | None = None
    # What precision.policy: Measure saw.
    measured: tuple[Trial, ...] = ()
    native_bfloat16: bool | None
    notices: tuple[str, ...]
    # Path of the exported model below the run folder; None when nothing was exported.
    model: str | None
    # What was exported, where that is not the last step's.
    best: Best | None = None


def events_file(attempt: int, incarnation: str, worker: int, part: int) -> str:
    """Name below the run folder of one worker's events; `part` counts from 0."""
    return f"{EVENTS}/{attempt}-{incarnation}-{worker}-{part}.jsonl"


def quarantine_name(attempt: int, incarnation: str, worker: int) -> str:
    """Name below QUARANTINE, without its ending, of the records that one worker skipped."""
    return f"{attempt}-{incarnation}-{worker}"


def difference(before: ResolvedJob, now: ResolvedJob) -> str | None:
    """The first field by which `now` is other work than `before`, or None when it may go on in the same folder.

    More epochs, another batch size, precision or number of workers is the same work; another name, program or
    data is not.
    """
    if before.name != now.name:
        return f"metadata.name was {before.name!r} and is {now.name!r}"
    if before.program != now.program:
        return "spec.program is another one"
    if (before.data is None) != (now.data is None):
        return "spec.data came or went"
    if before.data and now.data:
        for field in ("train", "label", "features"):
            if getattr(before.data, field) != getattr(now.data, field):
                return f"spec.data.{field} was {getattr(before.data, field)!r} and is {getattr(now.data, field)!r}"
    return None


# Parts of names; "io_u" is what Keras makes of IoU.
_LOWER = (
    *("loss", "error", "entropy", "divergence", "perplexity", "hinge", "poisson", "false"),
    *("mse", "mae", "rmse", "mape", "msle"),
)
# Whole words, or how a name ends: "acc" is in many words that have nothing to do with it.
_HIGHER = (
    *("accuracy", "acc", "auc", "precision", "recall", "sensitivity", "specificity", "iou", "io_u"),
    *("fmeasure", "f1", "fbeta", "r2", "similarity", "true", "dice"),
)


def direction(name: str) -> Literal["up", "down"] | None:
    """The better way for a metric of that name, with or without `val_`; None when the name does not say."""
    name = name.lower()
    # First: a mean_squared_error_of_accuracy is an error still.
    if any(word in name for word in _LOWER):
        return "down"
    words = re.split(r"[^a-z0-9]+", name)
    bare = name.rstrip("_0123456789")
    return "up" if any(word in words or bare.endswith(word) for word in _HIGHER) else None

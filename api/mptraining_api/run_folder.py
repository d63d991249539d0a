"""Contents of a run folder, the check that a job may resume in it, and the better direction of a metric.

Comparing, resuming, explaining and plotting a run need only this folder.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from mptraining_api.events import Recovery, Trial
from mptraining_api.model import AnyNumber, Model
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.sweep.status import trial_name

JOB = "job.json"
EVENTS = "events"
# Output of the workers' programs.
LOGS = "logs"
CHECKPOINTS = "checkpoints"
MODEL = "model"
# TensorBoard: scalars of every run, profiles, and what a TensorBoard callback writes.
TENSORBOARD = "tensorboard"
# Files of the callbacks of a function program, except TensorBoard's.
CALLBACKS = "callbacks"
QUARANTINE = "quarantine"
# A prediction's file, and the folder of its parts.
PREDICTIONS = "predictions.parquet"
PREDICTION_PARTS = "predictions"
# The folder of what a submitted function returned or raised, and the file in it.
FUNCTION = "function"
FUNCTION_RESULT = "result.json"
# State of the tuners of a script that uses KerasTuner.
TUNER = "tuner"
RESULT = "result.json"
# State of the export to tracking servers.
TRACKING = "tracking.json"
# The next step for a trial whose folder `difference` refuses; short, because messages of trials are.
ANOTHER_SWEEP = "Give the sweep another output.uri, or delete this folder."


class Best(Model):
    """The step with the best value of `monitor`, whose weights `export.checkpoint: Best` exported."""

    monitor: str
    mode: Literal["min", "max"]
    step: int
    value: float


class Result(Model):
    """Result of the run in `result.json`, written last. Times in seconds; memory in bytes, of the chief's process."""

    version: int = 1
    name: str
    reason: str
    exit_code: int
    message: str
    attempt: int
    step: int | None
    metrics: dict[str, AnyNumber]
    strategy: str
    precision: str
    keras: str
    workers: int
    replicas_in_sync: int
    global_batch_size: int | None
    # Median over the attempt's executions except the first, which compiles.
    step_seconds: float | None
    examples_per_second: float | None
    input_bound_percent: float | None
    # Traffic of the chief's process with buckets, and the time until its first batch of records.
    input_bytes: int | None = None
    input_requests: int | None = None
    input_retries: int | None = None
    first_record_seconds: float | None = None
    training_seconds: float | None
    seconds: float
    peak_memory_bytes: int
    skipped_steps: int
    # Damaged records that the chief's process skipped, in training and validation data.
    skipped_records: int = 0
    recoveries: int
    # One entry for each recovery; `precision` above is the policy at the end.
    recovered: tuple[Recovery, ...] = ()
    # Values of the last step; None without loss scaling, or if not finite.
    loss_scale: float | None = None
    gradient_norm: float | None = None
    # Measurements of precision.policy: Measure.
    measured: tuple[Trial, ...] = ()
    native_bfloat16: bool | None
    notices: tuple[str, ...]
    # Shortcomings of a success, such as skipped steps or a metric that is NaN.
    warnings: tuple[str, ...] = ()
    # Path of the exported model below the run folder; None when nothing was exported.
    model: str | None
    # The exported step, if it is not the last one.
    best: Best | None = None


class FunctionResult(Model):
    """The result of a submitted function, or the exception of its last attempt.

    `pickle` is either, in base64; None for an exception that cannot be pickled.
    """

    version: int = 1
    attempt: int = 0
    raised: bool
    type: str
    message: str = ""
    traceback: str = ""
    pickle: str | None


def events_file(attempt: int, incarnation: str, worker: int, part: int) -> str:
    """Return the path of one worker's events below the run folder; `part` counts from 0."""
    return f"{EVENTS}/{attempt}-{incarnation}-{worker}-{part}.jsonl"


def log_file(attempt: int, incarnation: str, worker: int, part: int) -> str:
    """Return the path of one worker's program output below the run folder; `part` counts from 0."""
    return f"{LOGS}/{attempt}-{incarnation}-{worker}-{part}.log"


class PartName(NamedTuple):
    """The elements of the name of a file in events/ or logs/, in the order of reading."""

    attempt: int
    incarnation: str
    worker: int
    part: int


def parse_events_name(path: str) -> PartName | None:
    """Return the elements of the name at the end of the path of a file of events; None for any other file."""
    return _parse_part_name(path, ".jsonl")


def parse_log_name(path: str) -> PartName | None:
    """Return the elements of the name at the end of the path of a file of output; None for any other file."""
    return _parse_part_name(path, ".log")


def _parse_part_name(path: str, suffix: str) -> PartName | None:
    name = path.rpartition("/")[2]
    match = re.fullmatch(r"(\d+)-(.+)-(\d+)-(\d+)", name.removesuffix(suffix)) if name.endswith(suffix) else None
    return PartName(int(match[1]), match[2], int(match[3]), int(match[4])) if match else None


def quarantine_name(attempt: int, incarnation: str, worker: int) -> str:
    """Return the name of the file with the records that one worker skipped, below QUARANTINE, without its suffix."""
    return f"{attempt}-{incarnation}-{worker}"


def difference(before: ResolvedJob, now: ResolvedJob) -> str | None:
    """Return the first field that forbids `now` to resume in the folder of `before`; None if it may resume.

    A job may resume with other epochs, batch size, precision or number of workers, but not with another name, program
    or data. The jobs of one trial of a sweep have names of their own and share the folder; those of a later sweep of
    the same name have the same names, other parameters, and must not.
    """
    if trial_name(before.name) != trial_name(now.name):
        return f"metadata.name was {before.name!r} and is {now.name!r}"
    if now.sweep is not None and before.sweep != now.sweep:
        return "an earlier sweep's or job's"
    if before.program != now.program:
        return "spec.program is another one"
    if (before.data is None) != (now.data is None):
        return "spec.data was added or removed"
    if before.data and now.data:
        for field in ("train", "predict", "label", "features"):
            if getattr(before.data, field) != getattr(now.data, field):
                return f"spec.data.{field} was {getattr(before.data, field)!r} and is {getattr(now.data, field)!r}"
    return None


# These match anywhere in a name.
_LOWER = (
    *("loss", "error", "entropy", "divergence", "perplexity", "hinge", "poisson", "false"),
    *("mse", "mae", "rmse", "mape", "msle"),
)
# These match whole words or the end of a name, because "acc" and others are part of unrelated names. Keras converts IoU
# to "io_u".
_HIGHER = (
    *("accuracy", "acc", "auc", "precision", "recall", "sensitivity", "specificity", "iou", "io_u"),
    *("fmeasure", "f1", "fbeta", "r2", "similarity", "true", "dice"),
)


def metric_direction(name: str) -> Literal["up", "down"] | None:
    """Return the better direction of a metric by its name, with or without `val_`; None if the name is unknown."""
    name = name.lower()
    # _LOWER is tested first, because mean_squared_error_of_accuracy is an error.
    if any(word in name for word in _LOWER):
        return "down"
    words = re.split(r"[^a-z0-9]+", name)
    bare = name.rstrip("_0123456789")
    return "up" if any(word in words or bare.endswith(word) for word in _HIGHER) else None

"""What a trainer process says while it works: one JSON object a line, in its log and in the run folder.

Every reader (the terminal, the operator, `mptj compare`, a notebook) knows a run by these alone. `parse` tells an
Event from any other line of a log and ignores fields of a newer version.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from mptraining_api.model import Model
from mptraining_api.model_report import ModelFacts


class Trial(Model):
    """What `precision.policy: Measure` saw of one policy: seconds a step (median), mean loss of the same first steps.

    `loss` is None when it was no finite number. `agrees` says whether it is close enough to float32's.
    """

    policy: str
    step_seconds: float
    loss: float | None
    agrees: bool


class ExcludedRecord(Model):
    """A training record that is left out from `step` on, since numbers are not finite with it; `record` counts from 0
    through all files of the data set, in the order of their names.
    """

    record: int
    step: int


class Recovery(Model):
    """Training went back from `from_step` to `to_step` and went on under `precision`."""

    from_step: int
    to_step: int
    precision: str
    message: str


VERSION = 1
_MARK = '"mptraining":'


class _Event(Model):
    """`time` in seconds since 1970, `attempt` from 1, `incarnation` the pod's uid or a local run's UUID."""

    mptraining: int = VERSION
    time: float
    attempt: int
    incarnation: str
    worker: int

    def to_json(self) -> str:
        """One line; logs are read by people too, so what is not known is left out."""
        return self.model_dump_json(exclude_none=True)


class Started(_Event):
    """Training is about to take its first step; what only the device could tell."""

    kind: Literal["Started"] = "Started"
    strategy: str
    precision: str
    keras: str
    tensorflow: str
    devices: tuple[str, ...]
    workers: int
    replicas_in_sync: int
    # A script batches, counts and stops by itself: None there.
    global_batch_size: int | None = None
    total_steps: int | None = None
    steps_per_epoch: int | None = None
    first_step: int = 0
    steps_per_execution: int | None = None
    train_examples: int | None = None
    validation_examples: int | None = None
    parameters: int | None = None
    features: tuple[str, ...] = ()
    cache: str | None = None
    # From the first request for records to the first batch of them.
    first_record_seconds: float | None = None
    native_bfloat16: bool | None = None
    # What precision.policy: Measure saw, in this attempt or an earlier one.
    measured: tuple[Trial, ...] = ()


class Progress(_Event):
    """How far training is, at most every few seconds, and whenever there are validation metrics.

    `metrics` holds finite numbers only; `val_` stands before validation's.
    """

    kind: Literal["Progress"] = "Progress"
    step: int
    total_steps: int | None = None
    epoch: int
    metrics: dict[str, float]
    examples_per_second: float | None = None
    step_seconds: float | None = None
    estimated_remaining_seconds: float | None = None
    # Of the time since the last Progress; bytes from buckets, requests and retries of this worker.
    input_bound_percent: float | None = None
    input_bytes_per_second: float | None = None
    input_requests: int | None = None
    input_retries: int | None = None
    learning_rate: float | None = None
    loss_scale: float | None = None
    skipped_steps: int | None = None
    # Of the last step: the Euclidean norm of all gradients together, before clipping. None when it was not finite.
    gradient_norm: float | None = None
    # The policy in force, and how often training has gone back since the job began.
    precision: str | None = None
    recoveries: int | None = None
    peak_memory_bytes: int | None = None
    # Of this worker's GPUs or TPU cores. Peak: the most that one's tensors took, by TensorFlow's allocator. The rest by
    # NVML: the fullest GPU's memory with all that uses it, and the mean share of the time in which a kernel ran.
    device_memory_peak_bytes: int | None = None
    device_memory_used_bytes: int | None = None
    device_memory_total_bytes: int | None = None
    device_utilization_percent: float | None = None


class Notice(_Event):
    """Something the user ought to know: each `topic` (CamelCase) is said once."""

    kind: Literal["Notice"] = "Notice"
    level: Literal["Info", "Warning"] = "Info"
    topic: str
    message: str


class Saved(_Event):
    """A checkpoint of this step is complete and published."""

    kind: Literal["Saved"] = "Saved"
    step: int
    uri: str
    bytes: int
    seconds: float


class Recovered(_Event):
    """Training went back to `to_step` after numbers stopped being finite at `from_step`; goes on under `precision`."""

    kind: Literal["Recovered"] = "Recovered"
    from_step: int
    to_step: int
    precision: str
    message: str


class Inspected(_Event):
    """The model was built and looked at; nothing is trained."""

    kind: Literal["Inspected"] = "Inspected"
    model: ModelFacts


class Finished(_Event):
    """The process is about to leave; `reason` and `exit_code` are those of `outcomes`."""

    kind: Literal["Finished"] = "Finished"
    reason: str
    exit_code: int
    message: str
    step: int | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    # Path of the exported model below the run folder.
    model: str | None = None
    seconds: float | None = None
    training_seconds: float | None = None
    # Of the whole training; see Started and Progress.
    first_record_seconds: float | None = None
    input_bound_percent: float | None = None
    peak_memory_bytes: int | None = None
    precision: str | None = None
    recoveries: int | None = None


Event = Started | Progress | Notice | Saved | Recovered | Inspected | Finished
_ADAPTER: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="kind")])


def parse(line: str) -> Event | None:
    """The Event that stands on this line of a log, or None for any other line and for kinds of a newer version."""
    text = line.strip()
    if not text.startswith("{") or _MARK not in text:
        return None
    try:
        return _ADAPTER.validate_json(text, extra="ignore")
    except ValidationError:
        return None

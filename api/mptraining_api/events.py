"""Events of a trainer process: one JSON object per line, in its log and in the run folder.

The terminal, the operator, `mptj compare` and notebooks read a run from its events alone. `parse` distinguishes an
Event from any other line of a log and ignores fields of a newer version.
"""

from __future__ import annotations

from types import NoneType
from typing import Annotated, Literal, get_args

from pydantic import Field, TypeAdapter, ValidationError

from mptraining_api.model import AnyNumber, Model


class Trial(Model):
    """Measurement of one policy by `precision.policy: Measure`: median seconds per step, mean loss of the same steps.

    `loss` is None if it was not finite. `agrees` is whether the loss is close enough to float32's.
    """

    policy: str
    step_seconds: float
    loss: float | None
    agrees: bool


class Recovery(Model):
    """A rollback from `from_step` to `to_step`, after which training continued under the policy `precision`."""

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
        """Return one line, without fields that are None, because people read logs, too."""
        return self.model_dump_json(exclude_none=True)


class Started(_Event):
    """Training is about to begin, or a prediction; the fields are known only on the device."""

    kind: Literal["Started"] = "Started"
    # None for training.
    purpose: Literal["Prediction"] | None = None
    strategy: str
    precision: str
    keras: str
    tensorflow: str
    devices: tuple[str, ...]
    workers: int
    replicas_in_sync: int
    # None for scripts, which have their own batches and training loop.
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
    # Time from the first request for records to the first batch.
    first_record_seconds: float | None = None
    # Time from the start of the process to this event: TensorFlow's import, peers, index, build, restore. With the
    # times of all events it tells the share of the wall time that advanced the training: an attempt loses its start-up,
    # the steps after the one from which the next Started or Recovered continues, and the pause before the next process.
    start_up_seconds: float | None = None
    native_bfloat16: bool | None = None
    # Measurements of precision.policy: Measure, in this attempt or an earlier one.
    measured: tuple[Trial, ...] = ()


class Progress(_Event):
    """Progress of training, every few seconds at most, and whenever there are validation metrics.

    The names of validation metrics begin with `val_`; values may be NaN or infinite.
    """

    kind: Literal["Progress"] = "Progress"
    step: int
    total_steps: int | None = None
    epoch: int
    # In a search with KerasTuner: the current trial, from 1, and the limit of the tuner.
    trial: int | None = None
    trials: int | None = None
    metrics: dict[str, AnyNumber]
    examples_per_second: float | None = None
    step_seconds: float | None = None
    estimated_remaining_seconds: float | None = None
    # Values since the last Progress; bytes, requests and retries are this worker's with buckets.
    input_bound_percent: float | None = None
    input_bytes_per_second: float | None = None
    input_requests: int | None = None
    input_retries: int | None = None
    learning_rate: float | None = None
    loss_scale: float | None = None
    skipped_steps: int | None = None
    # Euclidean norm of all gradients of the last step, before clipping; None if not finite.
    gradient_norm: float | None = None
    # The current policy, and the number of rollbacks since the job began.
    precision: str | None = None
    recoveries: int | None = None
    peak_memory_bytes: int | None = None
    # Processes of this worker's container that the kernel has killed for memory.
    oom_kills: int | None = None
    # Values of this worker's GPUs or TPU cores. Peak: the maximum over the devices, by TensorFlow's allocator. The
    # others are from NVML: memory of the fullest GPU by all its users, and mean fraction of time in which a kernel ran.
    device_memory_peak_bytes: int | None = None
    device_memory_used_bytes: int | None = None
    device_memory_total_bytes: int | None = None
    device_utilization_percent: float | None = None
    # Sum of the power, and the temperature of the hottest GPU.
    device_power_watts: float | None = None
    device_temperature_celsius: float | None = None
    # Values of this worker's container, or of its process where no cgroup limits it: CPU in percent of what it may use,
    # memory without the page cache, and rates since the last Progress. Disk: bytes from and to the device. Network: of
    # the pod, or of the machine's network cards.
    cpu_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_limit_bytes: int | None = None
    disk_read_bytes_per_second: float | None = None
    disk_write_bytes_per_second: float | None = None
    network_receive_bytes_per_second: float | None = None
    network_send_bytes_per_second: float | None = None


_POSITIONS = {"mptraining", "time", "attempt", "worker", "step", "total_steps", "epoch", "trial", "trials"}
# Numbers of Progress that are neither metrics nor positions, nor the time left.
GAUGES = tuple(
    name
    for name, field in Progress.model_fields.items()
    if name not in {*_POSITIONS, "estimated_remaining_seconds"}
    and set(get_args(field.annotation) or (field.annotation,)) <= {float, int, NoneType}
)


class Notice(_Event):
    """A message to the user; each `topic` (CamelCase) is reported once."""

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
    """Training rolled back to `to_step` after a non-finite value at `from_step`; it continues under `precision`."""

    kind: Literal["Recovered"] = "Recovered"
    from_step: int
    to_step: int
    precision: str
    message: str


Value = bool | int | float | str


class HyperparameterCondition(Model):
    """The value at `path` must be one of `values`."""

    path: str
    values: tuple[Value, ...]


class Hyperparameter(Model):
    """One hyperparameter of KerasTuner.

    `path` is the place of its value in the job's spec, `default` the value that the function gets if there is none.
    `low`, `high` (both possible values), `step` and `sampling` are those of an int or a float. With log sampling, the
    step is a factor and not a difference. `values` are those of a choice, a boolean or a fixed value. The
    hyperparameter counts only if all conditions in `when` hold.
    """

    path: str
    kind: Literal["int", "float", "choice", "boolean", "fixed"]
    low: int | float | None = None
    high: int | float | None = None
    step: int | float | None = None
    sampling: Literal["linear", "log", "reverse_log"] | None = None
    # Whether the values of a choice have an order.
    ordered: bool | None = None
    values: tuple[Value, ...] = ()
    default: Value
    when: tuple[HyperparameterCondition, ...] = ()


class SearchSpace(_Event):
    """The hyperparameters that the program's function asks KerasTuner's `hp` for; nothing is trained."""

    kind: Literal["SearchSpace"] = "SearchSpace"
    hyperparameters: tuple[Hyperparameter, ...]


class Raised(_Event):
    """The exception of a submitted function whose run folder is not kept: `run_folder.FunctionResult` as JSON."""

    kind: Literal["Raised"] = "Raised"
    result: str


class Finished(_Event):
    """The process is about to exit; `reason` and `exit_code` are those of `outcomes`."""

    kind: Literal["Finished"] = "Finished"
    reason: str
    exit_code: int
    message: str
    # The field of the job with which the message begins, if it is about one.
    field: str | None = None
    step: int | None = None
    metrics: dict[str, AnyNumber] = Field(default_factory=dict)
    # Shortcomings of a success, such as skipped steps or a metric that is NaN.
    warnings: tuple[str, ...] | None = None
    # Path of the exported model below the run folder.
    model: str | None = None
    seconds: float | None = None
    training_seconds: float | None = None
    # Values over the whole training; see Started and Progress.
    first_record_seconds: float | None = None
    input_bound_percent: float | None = None
    peak_memory_bytes: int | None = None
    precision: str | None = None
    recoveries: int | None = None
    # Seconds for which worker 0 keeps the run folder of a job without output.uri after this Event, and how that ended.
    kept_seconds: float | None = None
    hand_over: Literal["Fetched", "NotFetched"] | None = None


Event = Started | Progress | Notice | Saved | Recovered | SearchSpace | Raised | Finished
_ADAPTER: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="kind")])


def restart_step(event: Event) -> int | None:
    """Return the step after which training continues at this event: what was recorded of later steps is void.

    Return None for an event that voids nothing. Every step is trained after the one before it, so that a Progress voids
    what was recorded of its own step and of later ones; this also covers scripts whose Started does not know the step.
    """
    match event:
        case Started():
            unknown = event.first_step == 0 and event.total_steps is None
            return None if unknown else event.first_step
        case Recovered():
            return event.to_step
        case Progress():
            return event.step - 1
    return None


def gauges(event: Progress) -> dict[str, float]:
    """Return the gauges that the event has."""
    return {name: value for name in GAUGES if (value := getattr(event, name)) is not None}


def parse(line: str) -> Event | None:
    """Return the Event on this line of a log; None for any other line and for kinds of a newer version."""
    text = line.strip()
    if not text.startswith("{") or _MARK not in text:
        return None
    try:
        return _ADAPTER.validate_json(text, extra="ignore")
    except ValidationError:
        return None

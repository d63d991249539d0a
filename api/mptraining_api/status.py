"""The status of an MPTrainingJob, which the operator writes; labels, container and ConfigMap names of its children."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, Protocol, Self, TypeVar, get_args

from pydantic import Field, StringConstraints

from mptraining_api.model import Model, Name, NonNegative, Text, Uri, Word
from mptraining_api.spec import GROUP

Message = Annotated[str, StringConstraints(max_length=32768)]
# The API server refuses NaN and infinity as numbers (400), so that these values are strings.
Decimal = Annotated[str, StringConstraints(max_length=64)]
Digest = Annotated[str, StringConstraints(max_length=64)]
Time = Annotated[str, StringConstraints(max_length=64, pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z$")]


# Exact in a float64, which some clients parse numbers to.
Bytes = Annotated[int, Field(ge=0, le=2**53 - 1)]

# Attempts that the status keeps, the newest ones.
ATTEMPTS_KEPT = 10


def format_time(now: float) -> str:
    """Format seconds since 1970 as metav1.Time: RFC 3339, whole seconds, UTC."""
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(time: str) -> float:
    """Parse a metav1.Time or MicroTime into seconds since 1970, the inverse of `format_time`. Raises ValueError."""
    return datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()


class Phase(StrEnum):
    """Summary in one word for people; programs read the conditions."""

    PENDING = "Pending"
    QUEUED = "Queued"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class EventRecord:
    """A Kubernetes Event about an object, emitted after its status is written."""

    reason: str
    message: str
    type: Literal["Normal", "Warning"] = "Normal"


# The operator's condition types. Other controllers (Kueue, Argo) may add conditions of other types, which are kept.
ConditionType = Literal["Running", "Suspended", "Complete", "Failed", "Finished", "Reconciling", "Stalled"]
CONDITION_TYPES: tuple[str, ...] = get_args(ConditionType)
# Lengths and patterns of metav1.Condition.
_CONDITION_TYPE = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
)
AnyConditionType = Annotated[str, StringConstraints(max_length=316, pattern=_CONDITION_TYPE)]
ConditionReason = Annotated[
    str, StringConstraints(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
]


class Condition(Model):
    """As metav1.Condition, of the operator or of another controller.

    Complete and Failed are those of batch/v1 Jobs; Finished is true with either, so that one `kubectl wait` covers
    both. Reconciling and Stalled are those of kstatus (sigs.k8s.io/cli-utils): true until the job ends, and
    true when it has failed.
    """

    type: AnyConditionType = Field(description=f"{', '.join(CONDITION_TYPES)}, or one of another controller.")
    status: Literal["True", "False", "Unknown"] = Field(description="Status of the condition.")
    reason: ConditionReason = Field(description="Cause in one CamelCase word.")
    message: Message = Field(description="Cause and next step, for people.")
    last_transition_time: Time = Field(description="When status last changed.")
    observed_generation: NonNegative | None = Field(
        None, description="metadata.generation that the condition is based on."
    )


# The schema allows 32768 characters; etcd stores the message for every object.
_LONGEST_MESSAGE = 2000


def truncated(message: str) -> str:
    """Return the message, cut where it is longer than a status should store."""
    return message if len(message) <= _LONGEST_MESSAGE else message[: _LONGEST_MESSAGE - 1] + "…"


class _WithConditions(Protocol):
    @property
    def conditions(self) -> list[Condition] | None: ...

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self: ...


Status = TypeVar("Status", bound=_WithConditions)


def condition(status: _WithConditions, kind: ConditionType) -> Condition | None:
    return next((condition for condition in status.conditions or () if condition.type == kind), None)


def is_true(status: _WithConditions, kind: ConditionType) -> bool:
    current = condition(status, kind)
    return current is not None and current.status == "True"


def with_condition(
    status: Status, kind: ConditionType, value: bool, reason: str, message: str, now: float, generation: int
) -> Status:
    """Return the status with that condition set; `lastTransitionTime` changes only with the condition's status."""
    word: Literal["True", "False"] = "True" if value else "False"
    kept = list(status.conditions or ())
    index = next((at for at, condition in enumerate(kept) if condition.type == kind), len(kept))
    before = kept[index] if index < len(kept) else None
    after = Condition(
        type=kind,
        status=word,
        reason=reason,
        message=truncated(message),
        last_transition_time=format_time(now)
        if before is None or before.status != word
        else before.last_transition_time,
        observed_generation=generation,
    )
    return status.model_copy(update={"conditions": [*kept[:index], after, *kept[index + 1 :]]})


class Decision(Model):
    """One decision of the resolved job, as the current attempt runs it."""

    decision: Literal["image", "machine", "strategy", "precision", "batchSize"] = Field(description="What is decided.")
    value: Uri = Field(description="Such as MultiWorkerMirrored.")
    reason: Text = Field(description="Why, as `mptj check` prints it.")


class Attempt(Model):
    """One attempt: a gang of pods that train and end together."""

    number: NonNegative = Field(description="Number of the attempt, from 1.")
    outcome: Word | None = Field(None, description="Reason of its end; absent while it runs.")
    message: Message | None = Field(None, description="Cause of its end.")
    machine: NonNegative | None = Field(
        None, description="Number of its alternative in spec.accelerator.alternatives, from 1; absent: none."
    )
    workers: NonNegative | None = Field(None, description="Number of its workers, of an elastic job.")
    node: Name | None = Field(None, description="Node of the worker that failed it, if the node may be the cause.")
    start_time: Time | None = Field(None, description="When its pods were created.")
    completion_time: Time | None = Field(None, description="When it ended.")


class Metric(Model):
    name: Word = Field(description="Such as loss, val_loss.")
    value: Decimal = Field(description="The number, as text.")


class Progress(Model):
    """Progress of training; written at most once per 15 s, and always at the end."""

    attempt: NonNegative | None = Field(None, description="The attempt that reported it.")
    update_time: Time | None = Field(None, description="When it was reported.")
    step_time: Time | None = Field(None, description="When the number of steps last increased.")
    step: NonNegative | None = Field(None, description="Completed steps.")
    total_steps: NonNegative | None = Field(None, description="Steps in all.")
    epoch: NonNegative | None = Field(None, description="Current epoch, from 1.")
    trial: NonNegative | None = Field(None, description="Current trial of a search with KerasTuner, from 1.")
    trials: NonNegative | None = Field(None, description="Trials in all, if the tuner has a limit.")
    percent_complete: Annotated[int, Field(ge=0, le=100)] | None = Field(None, description="Of all steps.")
    examples_per_second: Annotated[float, Field(ge=0)] | None = Field(None, description="Over all replicas.")
    estimated_remaining_seconds: NonNegative | None = Field(None, description="At the current speed.")
    input_bound_percent: Annotated[float, Field(ge=0, le=100)] | None = Field(
        None, description="Share of the time that the loop waited for data."
    )
    loss_scale: Annotated[float, Field(ge=0)] | None = Field(None, description="Under mixed_float16.")
    precision: Word | None = Field(None, description="Current policy.")
    recoveries: NonNegative | None = Field(None, description="Number of rollbacks to a checkpoint.")
    oom_kills: NonNegative | None = Field(None, description="Processes of worker 0 that were killed for memory.")
    device_utilization_percent: Annotated[float, Field(ge=0, le=100)] | None = Field(
        None, description="Share of the time in which a kernel ran, mean of worker 0's GPUs."
    )
    device_memory_used_bytes: Bytes | None = Field(None, description="Memory in use on the fullest GPU of worker 0.")
    model_kept_until: Time | None = Field(
        None, description="Until when worker 0 keeps the model of a job without output.uri, to be fetched."
    )
    metrics: Annotated[list[Metric], Field(max_length=64)] | None = Field(None, description="The last values.")


# The observedGeneration that the API server returns for a job without a status.
NOT_OBSERVED = -1


class JobStatus(Model):
    """Observed state of the job."""

    phase: Phase | None = Field(None, description="Summary in one word.")
    observed_generation: Annotated[int, Field(ge=NOT_OBSERVED, le=2**31 - 1)] | None = Field(
        None, description="metadata.generation last acted on; -1 before the operator has seen the job."
    )
    start_time: Time | None = Field(None, description="When the first attempt's pods ran.")
    completion_time: Time | None = Field(None, description="When the job ended.")
    conditions: Annotated[list[Condition], Field(max_length=32)] | None = Field(
        None,
        description="As metav1.Condition.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    resolved: Annotated[list[Decision], Field(max_length=8)] | None = Field(
        None,
        description="The decisions of the resolved job, written before any pod exists.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["decision"]},
    )
    waited_seconds: NonNegative | None = Field(
        None,
        description="How long earlier attempts have waited for machines, counted against pendingTimeoutSeconds; absent "
        "once the job has run.",
    )
    workers: NonNegative | None = Field(None, description="Number of workers, each of them a pod.")
    replicas_in_sync: NonNegative | None = Field(None, description="Replicas that share each step.")
    current_attempt: NonNegative | None = Field(None, description="The current or the next attempt.")
    application_failures: NonNegative | None = Field(None, description="Counted against backoffLimit.")
    infrastructure_restarts: NonNegative | None = Field(None, description="Counted against infrastructureRetries.")
    job_digest: Digest | None = Field(None, description="SHA-256 of job.json, the resolved job that all attempts use.")
    attempts: Annotated[list[Attempt], Field(max_length=ATTEMPTS_KEPT)] | None = Field(
        None, description="The last ten."
    )
    progress: Progress | None = Field(None, description="Progress of training.")

    def resolved_value(self, decision: str) -> str | None:
        return next((choice.value for choice in self.resolved or () if choice.decision == decision), None)

    @property
    def machine_type(self) -> str:
        """The type of the accelerators of the current attempt; empty before the first."""
        return (self.resolved_value("machine") or "").partition(" ")[0]


# Labels of every child of a job: name and uid of the job, number of the attempt.
JOB = f"{GROUP}/job"
JOB_UID = f"{GROUP}/job-uid"
ATTEMPT = f"{GROUP}/attempt"
# The label that Kubernetes sets on the pods of an Indexed Job.
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"

# The container that trains, and the init container that prepares the source.
TRAINER_CONTAINER = "trainer"
SOURCE_CONTAINER = "source"


def config_map_name(job: str) -> str:
    """Return the name of the immutable ConfigMap with job.json, which the pods of all attempts mount."""
    return f"{job}-job"

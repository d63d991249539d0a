"""What the operator says about a job: `status` of an MPTrainingJob."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from mptraining_api.model import Model, NonNegative, Word
from mptraining_api.spec import GROUP

Message = Annotated[str, StringConstraints(max_length=32768)]
# A NaN or an infinity as a number is answered with 400 by the API server; as a string it is merely true.
Decimal = Annotated[str, StringConstraints(max_length=64)]
Digest = Annotated[str, StringConstraints(max_length=64)]
Time = Annotated[str, StringConstraints(max_length=64, pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z$")]


class Phase(StrEnum):
    """One word for people; programs read the conditions."""

    PENDING = "Pending"
    QUEUED = "Queued"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class Condition(Model):
    """As metav1.Condition. Finished stands beside Succeeded and Failed so that one `kubectl wait` catches both."""

    type: Literal["Running", "Suspended", "FellBackToCPU", "Finished", "Succeeded", "Failed"] = Field(
        description="Running, ..., Failed."
    )
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: Word = Field(description="One CamelCase word for the cause.")
    message: Message = Field(description="The cause and the next step, in words.")
    last_transition_time: Time = Field(description="When status last changed.")
    observed_generation: NonNegative | None = Field(None, description="metadata.generation it was decided for.")


class Attempt(Model):
    """One gang of pods: it trains together and ends together."""

    number: NonNegative = Field(description="1 for the first.")
    outcome: Word | None = Field(None, description="How it ended; absent while it runs.")
    message: Message | None = Field(None, description="What ended it.")
    start_time: Time | None = Field(None, description="When its pods were created.")
    completion_time: Time | None = Field(None, description="When it ended.")


class Metric(Model):
    name: Word = Field(description="Such as loss, val_loss.")
    value: Decimal = Field(description="The number, as text.")


class Progress(Model):
    """How far training is; written at most once per 15 s, the last one always."""

    attempt: NonNegative | None = Field(None, description="The attempt that said so.")
    update_time: Time | None = Field(None, description="When it was said.")
    step_time: Time | None = Field(None, description="When the number of steps last rose.")
    step: NonNegative | None = Field(None, description="Steps done.")
    total_steps: NonNegative | None = Field(None, description="Steps in all.")
    epoch: NonNegative | None = Field(None, description="Epoch under way, from 1.")
    percent_complete: Annotated[int, Field(ge=0, le=100)] | None = Field(None, description="Of all steps.")
    examples_per_second: Annotated[float, Field(ge=0)] | None = Field(None, description="Over all replicas.")
    estimated_remaining_seconds: NonNegative | None = Field(None, description="At the present speed.")
    input_bound_percent: Annotated[float, Field(ge=0, le=100)] | None = Field(
        None, description="Share of the time that the loop waited for data."
    )
    loss_scale: Annotated[float, Field(ge=0)] | None = Field(None, description="Under mixed_float16.")
    precision: Word | None = Field(None, description="Policy in force.")
    recoveries: NonNegative | None = Field(None, description="Times training went back to a checkpoint.")
    metrics: Annotated[list[Metric], Field(max_length=64)] | None = Field(None, description="The last values.")


class JobStatus(Model):
    """What is known of the job."""

    phase: Phase | None = Field(None, description="One word for people.")
    observed_generation: NonNegative | None = Field(None, description="metadata.generation last acted on.")
    start_time: Time | None = Field(None, description="When the first attempt's pods ran.")
    completion_time: Time | None = Field(None, description="When the job ended.")
    conditions: Annotated[list[Condition], Field(max_length=16)] | None = Field(
        None, description="As metav1.Condition."
    )
    strategy: Word | None = Field(None, description="The tf.distribute strategy that was picked.")
    precision: Word | None = Field(None, description="The precision policy that was picked.")
    workers: NonNegative | None = Field(None, description="Processes, one a pod.")
    replicas_in_sync: NonNegative | None = Field(None, description="Replicas that share each step.")
    global_batch_size: NonNegative | None = Field(None, description="Examples per step over all replicas.")
    current_attempt: NonNegative | None = Field(None, description="The attempt that exists or is about to.")
    application_failures: NonNegative | None = Field(None, description="Counted against backoffLimit.")
    infrastructure_restarts: NonNegative | None = Field(None, description="Counted against infrastructureRetries.")
    job_digest: Digest | None = Field(
        None, description="SHA-256 of the job as it was frozen: job.json in its ConfigMap."
    )
    attempts: Annotated[list[Attempt], Field(max_length=10)] | None = Field(None, description="The last ten.")
    progress: Progress | None = Field(None, description="How far training is.")


# On every child of a job, whose name, uid and number of the attempt they carry.
JOB = f"{GROUP}/job"
JOB_UID = f"{GROUP}/job-uid"
ATTEMPT = f"{GROUP}/attempt"
# Kubernetes' own, on the pods of an Indexed Job.
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"

# The container that trains, and the one before it that unpacks the source.
TRAINER_CONTAINER = "trainer"
SOURCE_CONTAINER = "source"


def config_map(job: str) -> str:
    """The immutable ConfigMap that keeps `job.json` for all attempts."""
    return f"{job}-job"

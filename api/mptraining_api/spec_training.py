"""The section `spec.training`: how long, with how many examples a step, and by which objects of Keras."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mptraining_api.model import Arguments, Count, Model, Name, NonNegative


class BatchSize(Model):
    """Examples per step: per replica, or over all replicas."""

    per_replica: Count | None = Field(None, description="Examples per replica and step.")
    global_: Count | None = Field(None, alias="global", description="Examples per step over all replicas.")


class KerasObject(Model):
    """A Keras object in Keras' own serialization."""

    class_name: Name = Field(description="Class name as Keras writes it: Adam, SparseCategoricalCrossentropy, ...")
    config: Arguments | None = Field(None, description="The class' arguments, schedules included.")


class LearningRateScaling(Model):
    """How the learning rate follows the global batch size."""

    rule: Literal["None", "Linear", "SquareRoot"] | None = Field(
        None, description="Linear suits SGD, SquareRoot suits Adam."
    )
    base_batch_size: Count | None = Field(None, description="Global batch size that the learning rate was found for.")
    warmup_steps: NonNegative | None = Field(None, description="Steps over which the learning rate rises from zero.")


class Training(Model):
    """How the model is trained. Not for scripts."""

    epochs: Count | None = Field(None, description="Passes over the training data; or give totalSteps.")
    total_steps: Count | None = Field(None, description="Steps in all; or give epochs.")
    steps_per_epoch: Count | None = Field(None, description="Steps that count as an epoch. Absent: the whole data.")
    validation_every_steps: Count | None = Field(None, description="Absent: at the end of every epoch.")
    validation_freq: Count | None = Field(
        None, description="Epochs from one validation to the next, as fit(validation_freq=...). Absent: 1."
    )
    initial_epoch: NonNegative | None = Field(
        None, description="Number of the first epoch, from 0, as fit(initial_epoch=...): training ends at epochs."
    )
    class_weight: Annotated[dict[str, Annotated[float, Field(ge=0)]], Field(min_length=1, max_length=1024)] | None = (
        Field(
            None,
            description='Weight of the examples of each class, by its number: {"0": 1.0, "1": 5.0}, as '
            "fit(class_weight=...).",
        )
    )
    batch_size: BatchSize | None = Field(None, description="perReplica or global.")
    optimizer: KerasObject | None = Field(None, description="Keras serialization, learning rate schedules included.")
    learning_rate_scaling: LearningRateScaling | None = Field(None, description="Learning rate against batch size.")
    loss: KerasObject | None = Field(None, description="Keras serialization.")
    metrics: Annotated[list[KerasObject], Field(max_length=32)] | None = Field(None, description="Keras serialization.")
    gradient_accumulation_steps: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        None, description="Batches whose gradients are averaged into one update."
    )
    steps_per_execution: Annotated[int, Field(ge=1, le=10000)] | None = Field(
        None, description="Steps fused into one call of the device. Absent: measured."
    )
    on_non_finite: Literal["Recover", "Fail"] | None = Field(
        None, description="When loss or weights stop being numbers."
    )
    deterministic: Literal["Auto", "Always", "Never"] | None = Field(
        None, description="Whether operations give the same bits each time on a GPU, at the price of speed."
    )
    seed: NonNegative | None = Field(None, description="Seed of weights, dropout and record order.")
    resume: Literal["Auto", "Never", "Required"] | None = Field(None, description="Whether to go on from a checkpoint.")

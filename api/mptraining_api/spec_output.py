"""What a run leaves behind, and where: the sections `spec.checkpoint`, `spec.export`, `spec.profile`, `spec.output`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mptraining_api.model import Count, Model, Name, NonNegative, Uri


class Checkpoint(Model):
    """How often the training state is saved."""

    every_steps: Count | None = Field(None, description="Steps between checkpoints. Absent: every epoch.")
    max_to_keep: Annotated[int, Field(ge=1, le=1000)] | None = Field(None, description="Checkpoints kept.")


class Export(Model):
    """The trained model as a file, always under the float32 policy."""

    format: Literal["keras", "saved_model"] | None = Field(None, description="keras, or saved_model for serving.")
    checkpoint: Literal["Last", "Best"] | None = Field(None, description="Which weights are exported.")
    monitor: Name | None = Field(None, description="With Best: the metric that decides, such as val_loss.")


class Profile(Model):
    """A range of steps recorded for TensorBoard's profiler, on every worker, into `tensorboard/` of the run folder."""

    first_step: NonNegative = Field(description="First step recorded; steps count from 1.")
    last_step: NonNegative = Field(description="Last step recorded.")


class Output(Model):
    """The run folder: checkpoints, events, the model."""

    uri: Uri = Field(description="gs://bucket/folder, or a path of a mounted volume.")

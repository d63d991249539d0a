"""Fields of what a job writes: checkpoints, the model, the run folder, profiles, metrics on servers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mptraining_api.model import Count, Model, Name, NonNegative, Uri

ExportFormat = Literal["keras", "saved_model", "onnx", "litert", "openvino"]


class Checkpoint(Model):
    """Checkpoints of the training state."""

    every_steps: Count | None = Field(None, description="Steps between checkpoints.")
    max_to_keep: Annotated[int, Field(ge=1, le=1000)] | None = Field(None, description="Number of checkpoints to keep.")


class Export(Model):
    """Export of the trained model, always with the float32 policy."""

    format: ExportFormat | None = Field(
        None, description="keras, or also a form for another runtime; onnx, litert and openvino need Keras 3."
    )
    checkpoint: Literal["Last", "Best"] | None = Field(
        None, description="Weights to export: the last, or the best by monitor."
    )
    monitor: Name | None = Field(None, description="With Best: the metric that decides, such as val_loss.")


class Profile(Model):
    """A range of steps that every worker profiles for TensorBoard, into `tensorboard/` of the run folder."""

    first_step: NonNegative = Field(description="First step recorded; steps count from 1.")
    last_step: NonNegative = Field(description="Last step recorded.")


class Output(Model):
    """The run folder: checkpoints, events, the model."""

    uri: Uri = Field(description="gs://bucket/folder, or a path of a mounted volume.")


class MLflow(Model):
    """An MLflow tracking server. Credentials come from the environment, such as MLFLOW_TRACKING_TOKEN."""

    uri: Uri = Field(description="https://server, as in MLFLOW_TRACKING_URI.")
    experiment: Name | None = Field(None, description="Experiment, created if it does not exist.")


class WandB(Model):
    """A project of Weights & Biases. The key comes from the environment: WANDB_API_KEY."""

    project: Name = Field(description="Project of the key's account.")


class Tracking(Model):
    """Tracking servers that a process beside worker 0 sends the run's metrics to."""

    mlflow: MLflow | None = Field(None, description="An MLflow tracking server.")
    wandb: WandB | None = Field(None, description="A project of Weights & Biases.")

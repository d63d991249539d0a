"""What a job writes besides its model, as a user writes it: the run folder, profiles, metrics on tracking servers."""

from __future__ import annotations

from pydantic import Field

from mptraining_api.model import Model, Name, NonNegative, Uri


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

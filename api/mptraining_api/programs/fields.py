"""Fields of `spec.program`: three programs that train, and two that use trained models."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from mptraining_api.model import Arguments, Count, EntryPoint, Model, Name, Text, Uri, Word
from mptraining_api.validation import patterns


class Application(Model):
    """A model by name: any of keras.applications, or mlp, or cnn."""

    name: Word = Field(description="ResNet50, EfficientNetV2B0, ..., mlp, cnn.")
    weights: Uri | None = Field(None, description="none, imagenet, or the URI of a weights file.")
    classes: Count | None = Field(None, description="Number of classes of the head.")
    freeze_base: bool | None = Field(None, description="Train the head only.")


class Function(Model):
    """A Python function that returns a keras.Model, or a dict of model, loss, optimizer, metrics and more."""

    entry_point: Annotated[EntryPoint, StringConstraints(pattern=patterns.ENTRY_POINT)] = Field(
        description="module:function, importable from the source."
    )
    arguments: Arguments | None = Field(None, description="Keyword arguments of the function.")


class Script(Model):
    """An unmodified training script; its own model.fit trains."""

    path: Annotated[str, StringConstraints(min_length=1, max_length=512)] = Field(
        description="Path of the script inside the source."
    )
    arguments: Annotated[list[Text], Field(max_length=256)] | None = Field(
        None, description="Command line arguments of the script."
    )


class Prediction(Model):
    """Predictions of a trained model for the records of data.predict, as a Parquet file in the run folder."""

    model: Uri = Field(
        description="URI or path of the model: a run folder, its model/, a .keras file, or a SavedModel's folder."
    )
    to: Uri | None = Field(None, description="URI or path of the Parquet file.")
    key: Name | None = Field(None, description="Feature that identifies a record; becomes the first column.")
    batch_size: Annotated[int, Field(ge=1, le=1 << 20)] | None = Field(
        None, description="Records per replica and step."
    )
    evaluate: bool | None = Field(
        None, description="Report the loss and the metrics; every record then needs its labels."
    )


class Ensemble(Model):
    """One model whose outputs are the mean of its members' outputs, evaluated on data.validation."""

    members: Annotated[list[Uri], Field(min_length=2, max_length=64)] = Field(
        description="URIs or paths of the members' run folders; the first one is the best."
    )
    weights: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=2, max_length=64)] | None = Field(
        None, description="Weights of the members in the mean; they are divided by their sum."
    )

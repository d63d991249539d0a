"""The sections `spec.program` and `spec.source`: what is trained, and where its code comes from."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from mptraining_api.model import Arguments, Count, EntryPoint, Model, Name, Text, Uri, Word


class Application(Model):
    """A model by name: any of keras.applications, or mlp, or cnn."""

    name: Word = Field(description="ResNet50, EfficientNetV2B0, ..., mlp, cnn.")
    weights: Uri | None = Field(None, description="none, imagenet, or the URI of a weights file.")
    classes: Count | None = Field(None, description="Number of classes of the head. Absent: from the data's manifest.")
    freeze_base: bool | None = Field(None, description="Train the head only.")


class Function(Model):
    """A Python function that returns a keras.Model, or a dict of model, loss, optimizer, metrics and more."""

    entry_point: Annotated[EntryPoint, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] = Field(
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


class Program(Model):
    """What is trained: exactly one of application, function, script."""

    application: Application | None = Field(None, description="A model by name.")
    function: Function | None = Field(None, description="A function that returns the model.")
    script: Script | None = Field(None, description="A training script of your own.")


# The entry of a ConfigMap that holds an archive; its keys have no slashes, so folders need one.
CONFIG_MAP_ARCHIVE = "source.tgz"

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$", max_length=64)]


class ConfigMapSource(Model):
    """Source files in a ConfigMap of the job's namespace: its entries, or an archive in its entry source.tgz."""

    name: Name = Field(description="Name of the ConfigMap.")
    sha256: Sha256 | None = Field(
        None, description="SHA-256 of the archive in its entry source.tgz. Absent: its entries are the files."
    )


class Archive(Model):
    """Source files in an archive, verified before it is unpacked."""

    uri: Uri = Field(description="gs://bucket/<sha256>.tgz")
    sha256: Sha256 = Field(description="SHA-256 of the archive, in hexadecimal.")


class Source(Model):
    """Where the program's code comes from. Absent: it is in the image, or beside the job file of a local run."""

    config_map: ConfigMapSource | None = Field(None, description="Source in a ConfigMap.")
    archive: Archive | None = Field(None, description="Source in an archive.")
    requirements: Annotated[str, StringConstraints(min_length=1, max_length=512)] | None = Field(
        None, description="Path of a requirements file inside the source."
    )

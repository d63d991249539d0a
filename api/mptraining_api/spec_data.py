"""The section `spec.data`: TFRecords and how they become batches."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mptraining_api.model import Count, EntryPoint, Model, Name, NonNegative, Uri


class Feature(Model):
    """One feature of the records and how it becomes a tensor."""

    name: Name = Field(description="Key of the feature in tf.train.Example.")
    dtype: Literal["uint8", "int32", "int64", "float16", "float32", "float64", "bool", "string"] = Field(
        description="Type of the tensor."
    )
    shape: Annotated[list[NonNegative], Field(max_length=8)] | None = Field(
        None, description="Shape of one example; 0 stands for a size that varies. Absent: a scalar."
    )
    decode: Literal["jpeg", "png", "raw"] | None = Field(
        None, description="jpeg, png, or raw for a tensor's bytes in little-endian C order."
    )
    resize: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = Field(
        None, description="Height and width that images are resized to."
    )


class Shuffle(Model):
    """How far records are mixed."""

    buffer_size: NonNegative | None = Field(None, description="Records mixed with one another; 0 keeps the order.")


class BadRecords(Model):
    """What happens to a record that cannot be read."""

    action: Literal["Fail", "Skip"] | None = Field(None, description="Fail, or Skip that record alone.")
    max_skipped: NonNegative | None = Field(None, description="With Skip: more than this fails the job.")


class Data(Model):
    """TFRecords and how they become batches. Not for scripts, which read their own data."""

    train: Annotated[list[Uri], Field(min_length=1, max_length=64)] = Field(
        description="URIs or paths of TFRecord files; wildcards allowed."
    )
    validation: Annotated[list[Uri], Field(min_length=1, max_length=64)] | None = Field(
        None, description="Like train; every example counts exactly once."
    )
    features: Annotated[list[Feature], Field(min_length=1, max_length=128)] | None = Field(
        None, description="Absent: from the manifest, else inferred from the first records, and said."
    )
    label: Name | None = Field(None, description="Name of the feature that is the label. Absent: the manifest's.")
    labels: Annotated[list[Name], Field(max_length=32)] | None = Field(
        None,
        description="Instead of label, the features that are labels, for a model with several outputs: by the names of "
        "the outputs, or in their order. An empty list: the data has no labels.",
    )
    sample_weight: Name | None = Field(
        None, description="Name of the feature with the weight of each example, as fit(sample_weight=...)."
    )
    preprocess: EntryPoint | None = Field(None, description="auto (the application's own), none, or module:function.")
    shuffle: Shuffle | None = Field(None, description="How far records are mixed.")
    cache: Literal["Auto", "Memory", "Disk", "None"] | None = Field(
        None, description="Where examples are kept between epochs. Auto: in memory or on the disk, where they fit."
    )
    bad_records: BadRecords | None = Field(None, description="What happens to a record that cannot be read.")
    remainder: Literal["Drop", "PadAndMask"] | None = Field(
        None, description="The last, smaller batch of an epoch: dropped, or padded with masked examples."
    )
    on_change: Literal["Refuse", "Accept"] | None = Field(
        None, description="When the data changed since the checkpoint was made."
    )

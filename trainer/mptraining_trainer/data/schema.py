"""The tensors in the records: from the job's `data.features`, otherwise the manifest, otherwise the first records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mptraining_api.problems import InvalidData, InvalidSpec, nearest
from mptraining_api.resolved_job import ResolvedData
from mptraining_api.spec import Feature as JobFeature
from mptraining_records.tfrecord import features, record_check
from mptraining_records.tfrecord.features import IMAGES, LABELS, Feature, is_variable
from mptraining_records.tfrecord.manifest import Manifest
from mptraining_records.tfrecord.record_check import INTEGERS


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of an example, without the batch dimension; None is a variable size. `ragged`: not padded."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    ragged: bool = False


@dataclass(frozen=True)
class ExampleSpec:
    """`inputs` in the order of the features, `labels` in the order of the job; `classes` are the manifest's names.

    A model with one input gets that tensor; a model with several gets a dict by name or, if its inputs are a list, a
    tuple. The same holds for losses and labels.
    """

    inputs: tuple[TensorSpec, ...]
    labels: tuple[TensorSpec, ...]
    classes: tuple[str, ...] | None = None
    weighted: bool = False

    @property
    def label(self) -> TensorSpec | None:
        """The only label; None if there are none or several."""
        return self.labels[0] if len(self.labels) == 1 else None


@dataclass(frozen=True)
class Column:
    """One feature after decoding; `shape` is that of the tensor, after `resize` (height, width).

    The first dimension is None if it varies. It is padded with `default` to the longest of a batch, or to the smallest
    of `boundaries` (in ascending order) that is enough; with `ragged` it is not padded. `length_name` is the name of a
    further input with its size. `default` is also the value of a feature that a record does not have; None if it must
    have it. `sequence`: see `Feature`. `typical_size` is an estimate of the first dimension for memory. `full_scale`:
    a JPEG is never decoded at a reduced scale. `must_be_finite`: a record with an infinite or NaN value cannot be
    decoded.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    decode: str | None
    resize: tuple[int, int] | None
    sequence: bool = False
    default: float | str | None = None
    boundaries: tuple[int, ...] = ()
    ragged: bool = False
    length_name: str | None = None
    typical_size: float = 1.0
    is_label: bool = False
    full_scale: bool = False
    must_be_finite: bool = False

    @property
    def is_variable(self) -> bool:
        """Whether the first dimension varies."""
        return is_variable(self.shape, self.decode)

    @property
    def is_reducible(self) -> bool:
        """Whether a JPEG that is resized to at most half may be decoded at a reduced scale."""
        return self.decode == "jpeg" and self.resize is not None and not self.full_scale

    @property
    def is_optional(self) -> bool:
        """Whether a record may have no such feature; a variable one is then empty, as for TensorFlow's parsers."""
        return self.is_variable or self.default is not None

    @property
    def limit(self) -> int | None:
        """The largest size of the first dimension, None without a limit."""
        return self.boundaries[-1] if self.boundaries else None

    @property
    def is_fixed_when_padded(self) -> bool:
        """Whether padding gives every batch the same shape: one boundary, and no second variable size."""
        return len(self.boundaries) == 1 and None not in self.shape[1:]


@dataclass(frozen=True)
class Columns:
    """All columns of a data set, the names of its labels and sample weight, and the label's class names."""

    columns: tuple[Column, ...]
    labels: tuple[str, ...]
    classes: tuple[str, ...] | None
    weight: str | None = None

    def example_spec(self) -> ExampleSpec:
        """Return the tensors of one example."""
        specs = {}
        for column in self.columns:
            # With one boundary, the first dimension is fixed in a batch.
            shape = (column.boundaries[0], *column.shape[1:]) if len(column.boundaries) == 1 else column.shape
            specs[column.name] = TensorSpec(column.name, column.dtype, shape, column.ragged)
            if column.length_name is not None:
                specs[column.length_name] = TensorSpec(column.length_name, "int32", ())
        labels = tuple(specs.pop(name) for name in self.labels)
        weighted = specs.pop(self.weight, None) is not None if self.weight else False
        return ExampleSpec(tuple(specs.values()), labels, self.classes, weighted)

    def describe(self) -> tuple[str, ...]:
        """Return one phrase per column, such as `image: uint8 [8, 8, 1] from png`."""
        return tuple(_describe(column, self._role(column.name)) for column in self.columns)

    def _role(self, name: str) -> str:
        return " (label)" if name in self.labels else " (sample weight)" if name == self.weight else ""


def to_features(columns: Sequence[Column]) -> tuple[JobFeature, ...]:
    """Return the columns as `data.features` of a job; `decide_columns` makes the same columns of them."""
    return tuple(
        JobFeature.parse(
            {
                "name": column.name,
                "dtype": column.dtype,
                "shape": [size or 0 for size in column.shape],
                "decode": column.decode,
                "resize": list(column.resize) if column.resize else None,
                "sequence": column.sequence or None,
                "default" if not isinstance(column.default, str) else "defaultText": column.default,
                "bucketBoundaries": list(column.boundaries) or None,
                "ragged": column.ragged or None,
                "lengthName": column.length_name,
                "decodeScale": "Full" if column.full_scale else None,
            }
        )
        for column in columns
    )


def decide_columns(
    data: ResolvedData, manifest: Manifest | None, first_records: Sequence[bytes], infer_notice: Callable[[str], None]
) -> Columns:
    """Return the columns of the training data.

    Raises InvalidSpec or InvalidData naming the feature that is unknown or of varying size.
    """
    if data.features is not None:
        columns = tuple(
            Column(
                feature.name,
                feature.dtype,
                tuple(size or None for size in feature.shape or ()),
                feature.decode,
                (feature.resize[0], feature.resize[1]) if feature.resize else None,
                sequence=bool(feature.sequence),
                default=feature.default if feature.default_text is None else feature.default_text,
                boundaries=tuple(sorted({*(feature.bucket_boundaries or ())})),
                ragged=bool(feature.ragged),
                length_name=feature.length_name,
                full_scale=feature.decode_scale == "Full",
            )
            for feature in data.features
        )
    elif manifest is not None:
        columns = tuple(_column(feature) for feature in manifest.features)
    else:
        inferred = features.infer(first_records, data.label)
        infer_notice("features inferred from the first records: " + "; ".join(features.describe(inferred)))
        columns = tuple(_column(feature) for feature in inferred)
    labels = _labels(data, manifest.label if manifest else None, columns)
    _check_weight(data.sample_weight, columns)
    if len(labels) + (data.sample_weight is not None) >= len(columns):
        raise InvalidSpec(
            "spec.data.features", f"only {', '.join(map(repr, labels))}", expected="at least one input besides"
        )
    for column in columns:
        if column.ragged and column.name in labels:
            raise InvalidSpec(
                f"spec.data.features[{column.name}].ragged",
                "a ragged label, which Keras' losses do not take",
                next_step="Remove ragged, so that it is padded; the loss ignores what the model masks.",
            )
        _check_default(column)
    columns = tuple(_sized(replace(column, is_label=column.name in labels)) for column in columns)
    classes = manifest.classes if manifest and labels == (manifest.label,) else None
    return Columns(columns, labels, classes, data.sample_weight)


def with_typical_sizes(columns: Columns, records: Sequence[bytes]) -> Columns:
    """Return the columns with the mean sizes of variable features in records without a fault."""

    def sized(column: Column) -> Column:
        if not column.is_variable or not records:
            return column
        mean = sum(record_check.length(column, record) for record in records) / len(records)
        return replace(column, typical_size=max(1.0, mean, column.boundaries[0] if column.boundaries else 0.0))

    return replace(columns, columns=tuple(map(sized, columns.columns)))


def _column(feature: Feature) -> Column:
    shape = tuple(feature.shape)
    return Column(feature.name, feature.dtype, shape, feature.decode, None, sequence=feature.sequence)


def _labels(data: ResolvedData, of_manifest: str | None, columns: Sequence[Column]) -> tuple[str, ...]:
    names = [column.name for column in columns]
    if data.labels is not None:
        for name in data.labels:
            _check_known("spec.data.labels", name, names, "Name the features that hold the labels.")
        return data.labels
    label = data.label or of_manifest
    if label is None:
        likely = [name for name in names if name in LABELS]
        if len(likely) != 1:
            raise InvalidSpec(
                "spec.data.label",
                "missing",
                expected=f"one of {names}",
                next_step="Add data.label, or labels: [] for data without labels.",
            )
        label = likely[0]
    _check_known("spec.data.label", label, names, "Name the feature that holds the label.")
    return (label,)


def _check_weight(weight: str | None, columns: Sequence[Column]) -> None:
    if weight is None:
        return
    field = "spec.data.sampleWeight"
    _check_known(field, weight, [column.name for column in columns], "Name the feature that holds the weights.")
    column = next(column for column in columns if column.name == weight)
    if column.dtype == "string" or column.decode is not None:
        raise InvalidSpec(field, f"{weight!r} holds {column.decode or column.dtype}", expected="one number an example")


def _check_default(column: Column) -> None:
    """Raise InvalidSpec for a default that is no value of the column's type, and would be another one in it."""
    if column.default is None or column.dtype not in INTEGERS:
        return
    # The default of an image is a PNG of 8 bits.
    limits = np.iinfo("uint8" if column.decode in IMAGES else column.dtype)
    default = float(column.default)
    if not default.is_integer() or not limits.min <= default <= limits.max:
        raise InvalidSpec(
            f"spec.data.features[{column.name}].default",
            f"{default:g}",
            expected=f"a whole number from {limits.min} to {limits.max} for dtype {column.dtype}",
        )


def _check_known(field: str, name: str, names: Sequence[str], otherwise: str) -> None:
    if name not in names:
        hint = nearest(name, names) or otherwise
        raise InvalidSpec(
            field, f"{name!r} is no feature of the records", expected=f"one of {list(names)}", next_step=hint
        )


def _sized(column: Column) -> Column:
    """Return the column after resizing. Raises InvalidData for a variable size, which cannot be batched.

    The first dimension may vary; of a feature list of numbers, the second one too.
    """
    shape = column.shape
    images = column.decode in IMAGES
    if images and not shape:
        shape = (None, None, 3)
    if images and (len(shape) not in (3, 4) or shape[-1] not in (None, 1, 3, 4)):
        raise InvalidSpec(
            f"spec.data.features[{column.name}].shape",
            f"{list(shape)} for an image",
            expected="[height, width, channels], or [0, height, width, channels] for a list of images, with 1, 3 or 4 "
            "channels",
        )
    if column.resize:
        shape = (*shape[:-3], *column.resize, *shape[-1:])
    if images and shape[-1] is None:
        shape = (*shape[:-1], 3)
    varies = is_variable(shape, column.decode)
    fixed = shape[1:] if varies else shape
    if varies and column.sequence and column.decode is None and len(fixed) == 1:
        fixed = ()
    if None in fixed:
        step = (
            "Give data.features with resize: [height, width] for it."
            if images
            else "Only the first size may vary: give data.features with such a shape, or convert the data to one."
        )
        raise InvalidData(f"feature {column.name!r}", f"mixed shapes {list(shape)} cannot be batched", next_step=step)
    return replace(column, shape=shape)


def _describe(column: Column, role: str) -> str:
    sizes = ", ".join("?" if size is None else str(size) for size in column.shape)
    text = f"{column.name}: {column.dtype} [{sizes}]"
    if column.decode:
        text += f" from {column.decode}"
    if column.resize:
        text += f" resized to {column.resize[0]}x{column.resize[1]}"
    if column.is_reducible:
        text += ", of twice that size or more decoded at 1/2, 1/4 or 1/8"
    if column.boundaries:
        text += f" padded to {' or '.join(map(str, column.boundaries))}"
    elif column.is_variable:
        text += " ragged" if column.ragged else " padded"
    return text + role

"""The tensors in the records: from the job's `data.features`, otherwise the manifest, otherwise the first records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mptraining_api.problems import InvalidData, InvalidSpec, nearest
from mptraining_api.resolved_job import ResolvedData
from mptraining_records.tfrecord import features
from mptraining_records.tfrecord.features import LABELS, Feature
from mptraining_records.tfrecord.manifest import Manifest


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of an example, without the batch dimension; None is a variable size."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]


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


_IMAGES = frozenset({"jpeg", "png"})


@dataclass(frozen=True)
class Column:
    """One feature after decoding; `shape` is that of the tensor, after `resize` (height, width)."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    decode: str | None
    resize: tuple[int, int] | None


@dataclass(frozen=True)
class Columns:
    """All columns of a data set, the names of its labels and sample weight, and the label's class names."""

    columns: tuple[Column, ...]
    labels: tuple[str, ...]
    classes: tuple[str, ...] | None
    weight: str | None = None

    def example_spec(self) -> ExampleSpec:
        """Return the tensors of one example."""
        specs = {column.name: TensorSpec(column.name, column.dtype, column.shape) for column in self.columns}
        labels = tuple(specs.pop(name) for name in self.labels)
        weighted = specs.pop(self.weight, None) is not None if self.weight else False
        return ExampleSpec(tuple(specs.values()), labels, self.classes, weighted)

    def describe(self) -> tuple[str, ...]:
        """Return one phrase per column, such as `image: uint8 [8, 8, 1] from png`."""
        return tuple(_describe(column, self._role(column.name)) for column in self.columns)

    def _role(self, name: str) -> str:
        return " (label)" if name in self.labels else " (sample weight)" if name == self.weight else ""


def decide_columns(
    data: ResolvedData,
    manifest: Manifest | None,
    first_records: Sequence[bytes],
    infer_notice: Callable[[str], None],
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
    columns = tuple(_sized(column) for column in columns)
    classes = manifest.classes if manifest and labels == (manifest.label,) else None
    return Columns(columns, labels, classes, data.sample_weight)


def _column(feature: Feature) -> Column:
    return Column(feature.name, feature.dtype, tuple(feature.shape), feature.decode, None)


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


def _check_known(field: str, name: str, names: Sequence[str], otherwise: str) -> None:
    if name not in names:
        hint = nearest(name, names) or otherwise
        raise InvalidSpec(
            field, f"{name!r} is no feature of the records", expected=f"one of {list(names)}", next_step=hint
        )


def _sized(column: Column) -> Column:
    """Return the column after resizing. Raises InvalidData for a variable size, which cannot be batched."""
    shape = column.shape
    if column.decode in _IMAGES and len(shape) != 3:
        if shape:
            raise InvalidSpec(
                f"spec.data.features[{column.name}].shape",
                f"{list(shape)} for an image",
                expected="[height, width, channels]",
            )
        shape = (None, None, 3)
    if column.resize:
        shape = (*column.resize, *shape[2:])
    if column.decode in _IMAGES and shape[2] is None:
        shape = (*shape[:2], 3)
    if None in shape:
        step = (
            "Give data.features with resize: [height, width] for it."
            if column.decode in _IMAGES
            else "Give data.features with a fixed shape, or convert the data to one."
        )
        raise InvalidData(f"feature {column.name!r}", f"mixed shapes {list(shape)} cannot be batched", next_step=step)
    return Column(column.name, column.dtype, shape, column.decode, column.resize)


def _describe(column: Column, role: str) -> str:
    text = f"{column.name}: {column.dtype} {list(column.shape)}"
    if column.decode:
        text += f" from {column.decode}"
    if column.resize:
        text += f" resized to {column.resize[0]}x{column.resize[1]}"
    return text + role

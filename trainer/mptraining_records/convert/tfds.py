"""Manifest of a prepared folder of TensorFlow Datasets, made of its features.json and dataset_info.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import google_crc32c
import numpy as np

from mptraining_api.problems import InvalidData
from mptraining_records.convert.request import SHARD_BYTES, Request, check_columns
from mptraining_records.convert.split import summarize
from mptraining_records.index import dataset_index
from mptraining_records.index.dataset_index import DatasetIndex
from mptraining_records.reading.order import Int64s
from mptraining_records.reading.reader import RecordReader
from mptraining_records.tfrecord import example
from mptraining_records.tfrecord.features import Decode, Dtype, Feature, choose_label
from mptraining_records.tfrecord.manifest import File, Manifest
from mptraining_records.tfrecord.record_check import INTEGERS
from mptraining_storage import storage
from mptraining_storage.preconditions import StoredObject

_FEATURES = "features.json"
_CHUNK = 256
# Shape and dtype of the kinds that have one.
_FIXED: Mapping[str, tuple[tuple[int | None, ...], str]] = {
    "classLabel": ((), "int64"),
    "text": ((), "string"),
    "boundingBox": ((4,), "float32"),
}
_DTYPES = frozenset(get_args(Dtype))


def is_prepared(folder: str) -> bool:
    """Return whether TensorFlow Datasets prepared the folder."""
    return storage.exists(storage.join(folder, _FEATURES))


def pattern(folder: str, *, name: str) -> str:
    """Return the pattern of the shards of the split `name`."""
    return storage.join(folder, f"*-{name}.tfrecord*")


def describe(uri: str, request: Request) -> Manifest:
    """Return the manifest of the split that the request names, whose shards stay as they are.

    Without `columns` it describes the supervised keys, if the data set has them. Raises InvalidData for another
    destination than the folder itself, and for options that need new files.
    """
    if _path(uri) != _path(request.destination):
        mistake, step = f"another folder than {uri}", "Copy the folder there first, or name it as the destination too"
        raise InvalidData(request.destination, f"{mistake}: its TFRecords are used where they are", next_step=step)
    if request.image_size or request.validation_fraction or request.shard_bytes != SHARD_BYTES:
        mistake = "--image-size, --validation-fraction and --shard-bytes need new files, and those of this folder stay"
        step = "Resize in data.features of the job, and use another split of the data set for validation"
        raise InvalidData(uri, mistake, next_step=step)
    written = dict(_flatten("", _load(uri, _FEATURES)))
    info = _load(uri, "dataset_info.json")
    splits = [split["name"] for split in info.get("splits", [])]
    if request.name not in splits:
        expected = "--name with one of " + ", ".join(map(repr, splits))
        raise InvalidData(uri, f"no split {request.name!r} in dataset_info.json", expected=expected)
    if info.get("fileFormat", "tfrecord") != "tfrecord":
        raise InvalidData(uri, f"files of the format {info['fileFormat']!r}", expected="tfrecord")
    keys = info.get("supervisedKeys", {}).get("tuple", {}).get("items", [])
    supervised = [name for item in keys if (name := item.get("featureKey")) in written]
    names = list(written)
    check_columns(uri, "--columns", request.columns or (), names)
    label = supervised[-1] if supervised and request.label is None else choose_label(uri, names, request.label)
    chosen = request.columns if request.columns is not None else supervised[:1] or names
    described = [name for name in names if name in chosen or name == label]
    features = tuple(_described(uri, name, written[name]) for name in described)
    left = [name for name in names if name not in described]
    if left and request.columns is None:
        request.notice(f"features that are not described: {', '.join(left)}; --columns selects others")
    index = dataset_index.build([pattern(uri, name=request.name)])
    classes = None if label is None else _classes(uri, label, written[label])
    labels = _labels(uri, index, features, label)
    return Manifest(
        name=request.name,
        features=features,
        label=label,
        classes=classes,
        records=index.count,
        files=tuple(
            File(name=shard.stored.name, records=shard.count, bytes=shard.stored.size, crc32c=_crc32c(shard.stored))
            for shard in index.shards
        ),
        permutation_seed=None,
        **summarize(labels, len(classes) if classes else None),
    )


def _labels(uri: str, index: DatasetIndex, features: Sequence[Feature], label: str | None) -> Int64s | None:
    """Return the label of every record, None if it is not one integer; reads them all.

    Raises InvalidData if a record has no value of a feature that is described.
    """
    needed = {feature.name for feature in features if not feature.is_optional}
    is_number = any(
        feature.name == label and not feature.shape and not feature.decode and feature.dtype in INTEGERS
        for feature in features
    )
    labels = []
    with RecordReader(index) as reader:
        for start in range(0, index.count, _CHUNK):
            numbers = np.arange(start, min(start + _CHUNK, index.count))
            for number, record in zip(numbers.tolist(), reader.read(numbers), strict=True):
                values = example.parse(record or b"")
                if missing := sorted(needed - values.keys()):
                    raise InvalidData(uri, f"record {number} has no {missing[0]!r}", next_step="Use --columns")
                if is_number:
                    labels.append(int(values[label or ""][1][0]))
    return np.array(labels, np.int64) if is_number else None


def _classes(uri: str, label: str, written: Mapping[str, Any]) -> tuple[str, ...] | None:
    if "classLabel" not in written:
        return None
    names = storage.join(uri, f"{label}.labels.txt")
    if storage.exists(names):
        return tuple(filter(None, map(str.strip, storage.read(names).decode().splitlines())))
    return tuple(map(str, range(int(written["classLabel"]["numClasses"]))))


def _described(uri: str, name: str, written: Mapping[str, Any]) -> Feature:
    """Return our description of one feature; raises InvalidData if its records cannot be read as one tensor."""
    if "sequence" in written:
        return _sequence(uri, name, written["sequence"])
    kind = next((kind for kind in ("image", "tensor", *_FIXED) if kind in written), None)
    content = written.get(kind or "", {})
    encoding = content.get("encoding", "none")
    sizes = map(int, content.get("shape", {}).get("dimensions", []))
    shape: tuple[int | None, ...] = tuple(None if size < 0 else size for size in sizes)
    dtype = content.get("dtype", "")
    decode: Decode | None = None
    if kind == "image":
        decode, shape = "jpeg" if content.get("encodingFormat") == "jpeg" else "png", shape or (None, None, 3)
    elif kind == "tensor":
        decode = "raw" if encoding == "bytes" else None
    elif kind is not None:
        shape, dtype = _FIXED[kind]
    if (
        kind is None
        or dtype not in _DTYPES
        or (dtype != "uint8" if kind == "image" else encoding not in ("none", "bytes"))
    ):
        raise _unsupported(uri, name, kind or next(iter(set(written) - {"pythonClassName"}), "unknown"), dtype)
    if kind == "tensor" and None in (shape if decode else shape[1:]):
        raise _unsupported(uri, name, "tensor of varying shape", dtype)
    return Feature(name=name, dtype=dtype, shape=shape, decode=decode)


def _sequence(uri: str, name: str, content: Mapping[str, Any]) -> Feature:
    """Return the feature of a sequence of numbers, texts or images, whose length may vary."""
    inner = content.get("feature", {})
    if "sequence" in inner or "featuresDict" in inner:
        raise _unsupported(uri, name, "sequence of sequences or dicts", "")
    item = _described(uri, name, inner)
    if item.decode == "raw" or (item.decode is None and None in item.shape):
        raise _unsupported(uri, name, "sequence of tensors of varying shape or of bytes", item.dtype)
    length = int(content.get("length", -1))
    return item.model_copy(update={"shape": (length if length >= 0 else None, *item.shape)})


def _unsupported(uri: str, name: str, kind: str, dtype: str) -> InvalidData:
    return InvalidData(
        uri,
        f"feature {name!r} is a {kind}{f' of {dtype}' if dtype else ''}",
        expected="images of uint8, class labels, text, tensors of which the first size alone varies, or a sequence "
        "of one of them",
        next_step="Select other features with --columns",
    )


def _path(uri: str) -> str:
    return uri.rstrip("/") if storage.is_remote(uri) else str(storage.local_path(uri).resolve())


def _crc32c(shard: StoredObject) -> int:
    if shard.crc32c is not None or not shard.size:
        return shard.crc32c or 0
    with storage.memory_map(shard) as content:
        return int(google_crc32c.value(np.frombuffer(content, np.uint8)))


def _load(folder: str, name: str) -> dict[str, Any]:
    uri = storage.join(folder, name)
    try:
        document = json.loads(storage.read(uri))
    except ValueError as error:
        raise InvalidData(uri, f"not JSON: {error}") from error
    if name == _FEATURES and "featuresDict" not in document:
        expected = "features as tensorflow-datasets 4.6 and newer write them"
        step = "Prepare the data set again with a newer tensorflow-datasets"
        raise InvalidData(uri, "no featuresDict", expected=expected, next_step=step)
    return dict(document)


def _flatten(prefix: str, feature: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the features by their names in the records, where nested ones are joined by slashes."""
    for name, nested in sorted(feature["featuresDict"].get("features", {}).items()):
        if "featuresDict" in nested:
            yield from _flatten(f"{prefix}{name}/", nested)
        else:
            yield f"{prefix}{name}", nested

"""Prepared folder of TensorFlow Datasets as a source of rows, described by its features.json and dataset_info.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from mptraining_api.problems import InvalidData
from mptraining_records.convert.request import SHARD_BYTES, Request, check_columns
from mptraining_records.index import dataset_index
from mptraining_records.reading.order import Int64s
from mptraining_records.reading.reader import RecordReader
from mptraining_records.tfrecord import example
from mptraining_records.tfrecord.features import Decode, Dtype, Feature, choose_label
from mptraining_records.tfrecord.manifest import File
from mptraining_records.tfrecord.record_check import INTEGERS
from mptraining_storage import storage
from mptraining_storage.preconditions import StoredObject

FEATURES = "features.json"
_CHUNK = 256
# Shape and dtype of the kinds that have one.
_FIXED: Mapping[str, tuple[tuple[int | None, ...], str]] = {
    "classLabel": ((), "int64"),
    "text": ((), "string"),
    "boundingBox": ((4,), "float32"),
}
_DTYPES = frozenset(get_args(Dtype))


class TfdsFolder:
    """The split of the request's name. Without `columns` its supervised keys are stored, if it has them.

    Where the destination is the folder itself its shards stay as they are, and only the manifest is written.
    """

    random_access = True

    def __init__(self, uri: str, request: Request) -> None:
        self.is_in_place = _path(uri) == _path(request.destination)
        if request.image_size:
            expected = "resize in data.features of the job"
            raise InvalidData("--image-size", "not possible for TensorFlow Datasets", expected=expected)
        if self.is_in_place and (request.validation_fraction or request.shard_bytes != SHARD_BYTES):
            found = "--validation-fraction and --shard-bytes need new files; those of this folder stay as they are"
            raise InvalidData(request.destination, found, next_step="Name another folder to write to")
        self._uri, self._request = uri, request
        self._written = dict(_flatten("", _load(uri, FEATURES)))
        info = _load(uri, "dataset_info.json")
        keys = info.get("supervisedKeys", {}).get("tuple", {}).get("items", [])
        supervised = [name for item in keys if (name := item.get("featureKey")) in self._written]
        names = list(self._written)
        check_columns(uri, "--columns", request.columns or (), names)
        check_columns(uri, "--group", [request.group], names)
        self.label = supervised[-1] if supervised and request.label is None else choose_label(uri, names, request.label)
        chosen = request.columns if request.columns is not None else supervised[:1] or names
        stored = [name for name in names if name in chosen or name == self.label]
        self._features = tuple(self._described(name, self._written[name]) for name in stored)
        left = [name for name in names if name not in stored]
        if left and request.columns is None:
            verb = "described" if self.is_in_place else "stored"
            request.notice(f"features that are not {verb}: {', '.join(left)}; --columns selects others")
        self.classes = self._classes()
        splits = [split["name"] for split in info.get("splits", [])]
        if request.name not in splits:
            expected = "--name with one of " + ", ".join(map(repr, splits))
            raise InvalidData(uri, f"no split {request.name!r} in dataset_info.json", expected=expected)
        if info.get("fileFormat", "tfrecord") != "tfrecord":
            raise InvalidData(uri, f"files of the format {info['fileFormat']!r}", expected="tfrecord")
        self._pattern = storage.join(uri, f"*-{request.name}.tfrecord*")
        self._index = dataset_index.build([self._pattern])
        self.count = self._index.count
        label = next((feature for feature in self._features if feature.name == self.label), None)
        is_number = label is not None and not label.shape and not label.decode and label.dtype in INTEGERS
        # Those of the records that were read.
        self._labels: dict[int, int] | None = {} if is_number else None

    def records(self, order: Int64s | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield number and record of all rows, or of those of `order`, with the selected features."""
        names = {feature.name for feature in self._features}
        needed = {feature.name for feature in self._features if not feature.is_optional}
        for number, record in self._read(np.arange(self.count) if order is None else order):
            values = example.parse(record)
            missing = sorted(needed - values.keys())
            if missing:
                raise InvalidData(self._uri, f"record {number} has no {missing[0]!r}", next_step="Use --columns")
            if self._labels is not None:
                self._labels[number] = int(values[self.label or ""][1][0])
            yield number, example.select(record, names)

    def features(self) -> tuple[Feature, ...]:
        return self._features

    def labels(self) -> Int64s | None:
        """Return the label of every row; None if it is not one integer. Reads the records that were not read."""
        if self._labels is None:
            return None
        for _ in self.records(np.setdiff1d(np.arange(self.count), list(self._labels))):
            pass
        return np.array([self._labels[number] for number in range(self.count)], np.int64)

    def groups(self) -> NDArray[Any]:
        """Return the value of every row in the column `group` of the request."""
        name = self._request.group
        assert name is not None
        return np.array([str(list(example.parse(record)[name][1])) for _, record in self._read(np.arange(self.count))])

    def report(self) -> None:
        """Report nothing: records are stored as they are."""

    def origin(self, number: int) -> str:
        return f"record {number}"

    def files(self) -> tuple[File, ...]:
        """Return the entries of the shards in a manifest; those of a bucket get an index."""
        dataset_index.publish([self._pattern])
        return tuple(
            File(name=shard.object.name, records=shard.count, bytes=shard.object.size, crc32c=_crc32c(shard.object))
            for shard in self._index.shards
        )

    def _read(self, numbers: Int64s) -> Iterator[tuple[int, bytes]]:
        with RecordReader(self._index) as reader:
            for start in range(0, len(numbers), _CHUNK):
                chunk = numbers[start : start + _CHUNK]
                for number, record in zip(chunk.tolist(), reader.read(chunk), strict=True):
                    assert record is not None
                    yield number, record

    def _classes(self) -> tuple[str, ...] | None:
        if self.label is None or "classLabel" not in self._written[self.label]:
            return None
        uri = storage.join(self._uri, f"{self.label}.labels.txt")
        if storage.exists(uri):
            return tuple(filter(None, map(str.strip, storage.read(uri).decode().splitlines())))
        return tuple(map(str, range(int(self._written[self.label]["classLabel"]["numClasses"]))))

    def _described(self, name: str, written: Mapping[str, Any]) -> Feature:
        """Return our description of one feature; raises InvalidData if its records cannot be read as one tensor."""
        if "sequence" in written:
            return self._sequence(name, written["sequence"])
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
            raise self._unsupported(name, kind or next(iter(set(written) - {"pythonClassName"}), "unknown"), dtype)
        if kind == "tensor" and None in (shape if decode else shape[1:]):
            raise self._unsupported(name, "tensor of varying shape", dtype)
        return Feature(name=name, dtype=dtype, shape=shape, decode=decode)

    def _sequence(self, name: str, content: Mapping[str, Any]) -> Feature:
        """Return the feature of a sequence of numbers, texts or images, whose length may vary."""
        inner = content.get("feature", {})
        if "sequence" in inner or "featuresDict" in inner:
            raise self._unsupported(name, "sequence of sequences or dicts", "")
        item = self._described(name, inner)
        if item.decode == "raw" or (item.decode is None and None in item.shape):
            raise self._unsupported(name, "sequence of tensors of varying shape or of bytes", item.dtype)
        length = int(content.get("length", -1))
        return item.model_copy(update={"shape": (length if length >= 0 else None, *item.shape)})

    def _unsupported(self, name: str, kind: str, dtype: str) -> InvalidData:
        return InvalidData(
            self._uri,
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
    if name == FEATURES and "featuresDict" not in document:
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

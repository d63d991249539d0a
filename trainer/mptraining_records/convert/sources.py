"""Sources of a conversion: rows of named values, and the features that describe them.

`Table` reads CSV and Parquet, `Arrays` NumPy's .npz, and `images.Folder` a folder of images.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mptraining_api.problems import InvalidData
from mptraining_records.convert import images
from mptraining_records.storage import storage
from mptraining_records.tfrecord import features
from mptraining_records.tfrecord.example import Encodable
from mptraining_records.tfrecord.features import Decode, Dtype, Feature, choose_label


class Table:
    """CSV and Parquet: numbers, text, and lists of numbers of one length.

    A text label is stored as class numbers, float64 as float32.
    """

    def __init__(self, uri: str, path: Path, *, label: str | None) -> None:
        import pyarrow as pa
        import pyarrow.dataset as ds

        self._uri = uri
        try:
            self._table = ds.dataset(path, format="csv" if path.suffix.lower() == ".csv" else "parquet")
            self.count = self._table.count_rows()
        except (pa.ArrowException, OSError) as error:
            raise InvalidData(uri, f"unreadable: {_arrow_message(error)}") from error
        if not self.count:
            raise InvalidData(uri, "no row in it")
        schema = self._table.schema
        repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if repeated:
            raise InvalidData(uri, f"two columns are called {repeated[0]!r}")
        self.label = choose_label(uri, schema.names, label)
        self.notices = tuple(
            f"{field.name}: float64 is stored as float32"
            for field in schema
            if pa.types.is_float64(getattr(field.type, "value_type", field.type))
        )
        self.classes = self._classes()
        self._lengths: dict[str, int] = {}
        self._kinds: dict[str, set[Decode | None]] = {}
        self._shapes: dict[str, set[tuple[int, int, int]]] = {}
        self._dtypes = {field.name: self._dtype(field) for field in schema}

    def rows(self) -> Iterator[Mapping[str, Encodable]]:
        done = 0
        for batch in self._batches(None):
            columns = {name: self._values(name, batch.column(name), done) for name in batch.schema.names}
            for row in range(batch.num_rows):
                yield {name: values[row] for name, values in columns.items()}
            done += batch.num_rows

    def features(self) -> tuple[Feature, ...]:
        return tuple(self._feature(name) for name in sorted(self._dtypes))

    def _feature(self, name: str) -> Feature:
        kinds = self._kinds.get(name, {None})
        if None not in kinds:
            return features.image_feature(name, {kind for kind in kinds if kind}, self._shapes[name])
        shape = (self._lengths[name],) if name in self._lengths else ()
        return Feature(name=name, dtype=self._dtypes[name], shape=shape)

    def _dtype(self, field: Any) -> Dtype:
        import pyarrow.types as kinds

        type = field.type
        if field.name == self.label and self.classes is not None:
            return "int64"
        if kinds.is_list(type) or kinds.is_large_list(type) or kinds.is_fixed_size_list(type):
            type = type.value_type
        elif _is_text(type) or kinds.is_binary(type) or kinds.is_large_binary(type):
            return "string"
        if kinds.is_null(type):
            raise self._missing(field.name, 0)
        if kinds.is_boolean(type):
            return "bool"
        if kinds.is_integer(type):
            return "int64"
        if kinds.is_floating(type):
            return "float32"
        raise InvalidData(
            self._uri,
            f"column {field.name!r} has the type {field.type}",
            expected="numbers, booleans, text, bytes, or lists of numbers of one length",
            next_step="Leave the column out, or turn it into numbers",
        )

    def _classes(self) -> tuple[str, ...] | None:
        import pyarrow.compute as pc

        if self.label is None or not _is_text(self._table.schema.field(self.label).type):
            return None
        names: set[str] = set()
        for batch in self._batches([self.label]):
            names.update(name for name in pc.unique(batch.column(0)).to_pylist() if name is not None)
        return tuple(sorted(names))

    def _batches(self, columns: list[str] | None) -> Iterator[Any]:
        import pyarrow as pa

        try:
            yield from self._table.to_batches(columns=columns, batch_size=8192)
        except (pa.ArrowException, OSError) as error:
            raise InvalidData(self._uri, f"unreadable: {_arrow_message(error)}") from error

    def _values(self, name: str, column: Any, done: int) -> list[Encodable]:
        """Return one value for each row of a batch that begins at row `done`."""
        if column.null_count:
            row = done + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise self._missing(name, row)
        dtype = self._dtypes[name]
        if name == self.label and self.classes is not None:
            numbers = {class_name: number for number, class_name in enumerate(self.classes)}
            return [numbers[value] for value in column.to_pylist()]
        if dtype == "string":
            values = column.to_pylist()
            self._detect_images(name, values)
            return values  # type: ignore[no-any-return]
        if hasattr(column.type, "value_type"):
            return self._vectors(name, column, done)
        values = column.to_numpy(zero_copy_only=False)
        if name == self.label and dtype == "float32" and not np.isfinite(values).all():
            raise self._missing(name, done + int(np.flatnonzero(~np.isfinite(values))[0]))
        return values.tolist()  # type: ignore[no-any-return]

    def _vectors(self, name: str, column: Any, done: int) -> list[Encodable]:
        rows = column.to_pylist()
        expected = self._lengths.setdefault(name, len(rows[0]) if rows else 0)
        for number, row in enumerate(rows, done):
            if len(row) != expected:
                raise InvalidData(
                    self._uri,
                    f"column {name!r}, row {number}: a list of {len(row)} values",
                    expected=f"{expected}, as in the first row",
                )
            if None in row:
                raise self._missing(name, number)
        return rows  # type: ignore[no-any-return]

    def _detect_images(self, name: str, values: list[bytes | str]) -> None:
        kinds = self._kinds.setdefault(name, set())
        for value in values:
            kind = features.image_kind(value) if isinstance(value, bytes) else None
            kinds.add(kind)
            if None in kinds:
                return
            try:
                self._shapes.setdefault(name, set()).add(features.image_shape(bytes(value)))  # type: ignore[arg-type]
            except OSError as error:
                raise InvalidData(self._uri, f"column {name!r}: a damaged image: {error}") from error

    def _missing(self, name: str, row: int) -> InvalidData:
        missing = "label" if name == self.label else "value"
        return InvalidData(
            self._uri,
            f"column {name!r}, row {row}: no {missing}",
            expected="a value in every row",
            next_step="Fill the gaps or leave these rows out",
        )


def _is_text(type: Any) -> bool:
    import pyarrow.types as kinds

    text = type.value_type if kinds.is_dictionary(type) else type
    return bool(kinds.is_string(text) or kinds.is_large_string(text))


def _arrow_message(error: Exception) -> str:
    # Arrow prefixes the cause with the names of its layers.
    return str(error).partition("\n")[0].rpartition("Invalid: ")[2]


class Arrays:
    """.npz: Tensors of uint8 and float16 are stored as bytes, float64 as float32, a text label as class numbers."""

    def __init__(self, uri: str, path: Path, *, label: str | None) -> None:
        arrays = _load(uri, path)
        lengths = {name: array.shape[0] if array.ndim else 0 for name, array in arrays.items()}
        if len(set(lengths.values())) != 1:
            found = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise InvalidData(
                uri,
                f"arrays of unequal length: {found}" if found else "no array in it",
                expected="one row of every array for each record",
                next_step="Save each split to a separate file" if found else "",
            )
        self.count = next(iter(lengths.values()))
        self.label = choose_label(uri, list(arrays), label)
        self.classes: tuple[str, ...] | None = None
        self.notices: tuple[str, ...] = ()
        if self.label and arrays[self.label].dtype.kind in "SU":
            names, numbers = np.unique(arrays[self.label].astype(str), return_inverse=True)
            self.classes = tuple(names.tolist())
            arrays[self.label] = numbers.reshape(self.count).astype(np.int64)
        for name, array in arrays.items():
            if array.dtype == np.float64:
                self.notices += (f"{name}: float64 is stored as float32",)
            if array.dtype.kind not in "buifSU":
                raise InvalidData(uri, f"{name}: {array.dtype} values", expected="numbers, booleans or text")
            if name == self.label and array.dtype.kind == "f" and not np.isfinite(array).all():
                row = int(np.argwhere(~np.isfinite(array))[0][0])
                raise InvalidData(uri, f"{name}: the label of row {row} is not a finite number")
        self._arrays = arrays
        self._features = tuple(_feature(name, array) for name, array in sorted(arrays.items()))

    def rows(self) -> Iterator[Mapping[str, Encodable]]:
        for row in range(self.count):
            yield {feature.name: _encodable(feature, self._arrays[feature.name][row]) for feature in self._features}

    def features(self) -> tuple[Feature, ...]:
        return self._features


def _load(uri: str, path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InvalidData(uri, f"not a readable .npz file: {error}") from error
    return {name: array.astype(array.dtype.newbyteorder("="), copy=False) for name, array in arrays.items()}


def _feature(name: str, array: NDArray[Any]) -> Feature:
    shape = array.shape[1:]
    kind = array.dtype.kind
    if kind == "f":
        if array.dtype == np.float16:
            return Feature(name=name, dtype="float16", shape=shape, decode="raw")
        return Feature(name=name, dtype="float32", shape=shape)
    if kind in "SU":
        return Feature(name=name, dtype="string", shape=shape)
    if kind == "b":
        return Feature(name=name, dtype="bool", shape=shape)
    if array.dtype == np.uint8 and shape:
        return Feature(name=name, dtype="uint8", shape=shape, decode="raw")
    return Feature(name=name, dtype="int32" if array.dtype == np.int32 else "int64", shape=shape)


def _encodable(feature: Feature, value: Any) -> Encodable:
    if feature.decode == "raw":
        array = np.asarray(value)
        return array.astype(array.dtype.newbyteorder("<")).tobytes()
    return np.asarray(value)


_KINDS = "a folder of images, .csv, .parquet or .npz"


class Source(Protocol):
    """A source of rows. `features` is complete after all rows are read; `notices` are reported before."""

    @property
    def count(self) -> int: ...
    @property
    def label(self) -> str | None: ...
    @property
    def classes(self) -> tuple[str, ...] | None: ...
    @property
    def notices(self) -> tuple[str, ...]: ...
    def rows(self) -> Iterator[Mapping[str, Encodable]]: ...
    def features(self) -> tuple[Feature, ...]: ...


@contextmanager
def open_source(uri: str, *, label: str | None, image_size: tuple[int, int] | None) -> Iterator[Source]:
    """Open the source at `uri`, local or remote; `image_size` is (height, width).

    Raises InvalidData if there is no source of a known kind.
    """
    suffix = Path(uri).suffix.lower()
    if suffix not in (".csv", ".parquet", ".npz"):
        if not storage.is_remote(uri) and storage.exists(uri):
            raise InvalidData(uri, f"unknown kind of source {suffix or 'without a suffix'!r}", expected=_KINDS)
        if not storage.is_remote(uri) and not storage.local_path(uri).exists():
            raise InvalidData(uri, "no such file or folder", expected=_KINDS)
        yield images.Folder(uri, label=label, size=image_size)
        return
    with storage.as_local_file(uri) as path:
        if suffix == ".npz":
            yield Arrays(uri, path, label=label)
        else:
            yield Table(uri, path, label=label)

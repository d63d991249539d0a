"""CSV, Parquet, NumPy and text files as Arrow tables, or as streams of batches where they may be larger than memory."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mptraining_api.problems import InvalidData
from mptraining_records.convert.request import Request
from mptraining_records.tfrecord.features import Dtype, Feature, choose_label

TEXT = "text"
STORED_AS_FLOAT32 = "float64 is stored as float32"
# As ml_dtypes.bfloat16 is after `np.savez` and `np.load`.
_BFLOAT16 = np.dtype("V2")
_STORED_AS_BYTES = frozenset({"int8", "uint8", "int16", "uint16", "uint32"})


@contextmanager
def arrow_errors(uri: str) -> Iterator[None]:
    """Raise errors of Arrow, and of files, as InvalidData about the file."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        # Arrow prefixes the cause with the names of its layers.
        cause = str(error).partition("\n")[0].rpartition("Invalid: ")[2]
        raise InvalidData(uri, f"unreadable: {cause}") from error


def open_table(uri: str, path: Path, *, as_text: Collection[str] = ()) -> Any:
    """Open a CSV or Parquet file as a data set; a CSV with these columns as text. Raises InvalidData without a row."""
    import pyarrow as pa
    import pyarrow.csv as pc
    import pyarrow.dataset as ds

    options = pc.ConvertOptions(column_types=dict.fromkeys(as_text, pa.string()))
    is_csv = path.suffix.lower() == ".csv"
    with arrow_errors(uri):
        data = ds.dataset(path, format=ds.CsvFileFormat(convert_options=options) if is_csv else "parquet")
        names = data.schema.names
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise InvalidData(uri, f"two columns are called {repeated[0]!r}")
        if not data.head(1).num_rows:
            raise InvalidData(uri, "no row in it")
    return data


def first_values(uri: str, path: Path, rows: int) -> dict[str, list[Any]]:
    """Return the values of the first rows by column; of a CSV as text, so that `007` stays a name."""
    data = open_table(uri, path, as_text=open_table(uri, path).schema.names)
    with arrow_errors(uri):
        first: dict[str, list[Any]] = data.head(rows).to_pydict()
    return first


def lines_of(path: Path, rows: Collection[int]) -> dict[int, int]:
    """Return the first line of each of these rows of a CSV, 1 for the header's; a quoted value may have many lines."""
    lines: dict[int, int] = {}
    # A value may be longer than the csv module allows.
    with path.open(encoding="utf-8", errors="replace", newline="") as file, suppress(csv.Error):
        reader = csv.reader(file)
        row, line = -1, 1
        for values in reader:
            # Arrow ignores empty lines.
            if values:
                if row in rows:
                    lines[row] = line
                row += 1
            if len(lines) == len(set(rows)):
                break
            line = reader.line_num + 1
    return {row: lines.get(row, row + 2) for row in rows}


class Lines:
    """The lines of a text file that are not empty, read as a `pyarrow.dataset.Dataset` is."""

    def __init__(self, uri: str, path: Path) -> None:
        import pyarrow as pa

        self.schema = pa.schema([(TEXT, pa.string())])
        self._uri, self._path = uri, path

    def to_batches(self, *, columns: Sequence[str], batch_size: int) -> Iterator[Any]:
        import pyarrow as pa

        lines = (utf8(self._uri, content) for _, content in self._numbered())
        while batch := list(islice(lines, batch_size)):
            yield pa.record_batch({TEXT: batch}).select(columns)

    def line_of(self, row: int) -> int:
        """Return the line of a row as editors count, from 1."""
        return next(islice(self._numbered(), row, None))[0]

    def _numbered(self) -> Iterator[tuple[int, bytes]]:
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if content := line.rstrip(b"\r\n"):
                    yield number, content


def utf8(uri: str, content: bytes) -> str:
    """Decode text; raises InvalidData if it is not UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InvalidData(uri, f"not UTF-8 at {content[:40]!r}", next_step="Convert the file to UTF-8") from error


def read_arrays(uri: str, path: Path, request: Request) -> tuple[Any, dict[str, Feature]]:
    """Return the arrays of an .npz file as an Arrow table, and the features of all but a label of text.

    Rows of an array with more than one dimension, or of float16 and bfloat16, are a column of their bytes. NumPy has no
    name for bfloat16 and writes it as two bytes without a type.
    """
    import pyarrow as pa

    arrays = _load(uri, path)
    lengths = {name: array.shape[0] if array.ndim else 0 for name, array in arrays.items()}
    if not any(lengths.values()):
        raise InvalidData(uri, "no row in it" if lengths else "no array in it")
    if len(set(lengths.values())) > 1:
        mistake = "arrays of unequal length: " + ", ".join(f"{name} has {length}" for name, length in lengths.items())
        expected, step = "one row of every array for each record", "Save each split to a separate file"
        raise InvalidData(uri, mistake, expected=expected, next_step=step)
    label = choose_label(uri, list(arrays), request.label)
    stored = {*request.stored_columns(uri, list(arrays), label), request.group}
    columns, features = {}, {}
    for name, array in ((name, array) for name, array in arrays.items() if name in stored):
        if array.dtype.kind not in "buifSU" and array.dtype != _BFLOAT16:
            raise InvalidData(uri, f"{name}: {array.dtype} values", expected="numbers, booleans or text")
        if name == label and array.dtype.kind == "f" and not np.isfinite(array).all():
            row = int(np.argwhere(~np.isfinite(array))[0][0])
            raise InvalidData(uri, f"{name}: the label of row {row} is not a finite number")
        if array.dtype == np.float64:
            request.notice(f"{name}: {STORED_AS_FLOAT32}")
        if array.dtype == _BFLOAT16:
            request.notice(f"{name}: two bytes without a type are bfloat16")
        if name == label and array.dtype.kind in "SU" and array.ndim == 1:
            columns[name] = pa.array(array.astype(str).tolist())
        else:
            columns[name], features[name] = _column(name, array)
    return pa.table(columns), features


def _load(uri: str, path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InvalidData(uri, f"not a readable .npz file: {error}") from error
    return {name: array.astype(array.dtype.newbyteorder("="), copy=False) for name, array in arrays.items()}


def _column(name: str, array: NDArray[Any]) -> tuple[Any, Feature]:
    import pyarrow as pa

    shape, dtype, size = array.shape[1:], array.dtype, int(np.prod(array.shape[1:]))
    if dtype.kind in "SU":
        texts = (array.reshape(len(array), size) if shape else array).tolist()
        feature = Feature(name=name, dtype="string", shape=shape)
        return pa.array(texts, pa.list_(pa.binary()) if shape else pa.binary()), feature
    as_bytes = dtype in (np.float16, _BFLOAT16) or (shape and dtype.name in _STORED_AS_BYTES)
    if as_bytes or dtype == np.int32:
        stored = "bfloat16" if dtype == _BFLOAT16 else dtype.name
    else:
        stored = {"f": "float32", "b": "bool"}.get(dtype.kind, "int64")
        array = array.astype(stored, copy=False)
    feature = Feature(name=name, dtype=cast("Dtype", stored), shape=shape, decode="raw" if as_bytes else None)
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    if not as_bytes and not shape:
        return pa.array(array), feature
    row_bytes = pa.binary(array.dtype.itemsize * size)
    return pa.FixedSizeBinaryArray.from_buffers(row_bytes, len(array), [None, pa.py_buffer(array)]), feature

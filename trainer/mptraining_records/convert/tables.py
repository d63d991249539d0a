"""CSV and Parquet files as sources of rows."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mptraining_api.problems import InvalidData
from mptraining_records.convert import images
from mptraining_records.convert.files import ImageColumns
from mptraining_records.convert.request import LabelAs, Request, check_column, stored_columns
from mptraining_records.reading.order import Int64s
from mptraining_records.tfrecord.example import Encodable
from mptraining_records.tfrecord.features import Dtype, Feature, choose_label

# More distinct integers than this are no one-based classes.
_MAX_CLASSES = 1000
# More columns with gaps are counted only.
_SHOWN_COLUMNS = 20


class Table:
    """CSV and Parquet: numbers, text, and lists of them; the length of a list may vary, that of a list in it not.

    A text label is stored as class numbers, float64 as float32. An integer label is stored as class numbers if the
    request says so, or if its values are 1, 2, …, k without a gap, since classes are numbered from 0.

    A row has a gap where a value, or one in its list, is absent, where a label is not finite, and where a CSV has NaN
    as a number; in the column of groups and in `keys`, which are not stored, an empty text is a gap too. Such rows are
    refused, or left out on request.
    """

    random_access = False

    def __init__(self, uri: str, path: Path, request: Request, keys: Sequence[str] = ()) -> None:
        import pyarrow as pa

        self._uri = uri
        self._csv = path if path.suffix.lower() == ".csv" else None
        self._group = request.group
        self._table = _open(uri, path)
        self.count = _read(uri, self._table.count_rows)
        schema = self._table.schema
        self.label = choose_label(uri, schema.names, request.label)
        if request.group is not None:
            check_column(uri, "--group", request.group, schema.names)
        self._names = stored_columns(uri, schema.names, self.label, request)
        self._keys = list(dict.fromkeys([*keys, *([] if request.group is None else [request.group])]))
        for field in schema:
            if field.name in self._names and pa.types.is_float64(getattr(field.type, "value_type", field.type)):
                request.notice(f"{field.name}: float64 is stored as float32")
        # The number of each row in the file, in the order of the rows that are not left out.
        self.row_numbers: Int64s = np.arange(self.count)
        self._kept: NDArray[np.bool_] | None = None
        if request.missing == "Drop":
            self._drop_gaps(request)
        elif self._gaps(self._keys):
            raise self._missing()
        self._class_values = self._values_of_classes(request.label_as)
        self.classes = None if self._class_values is None else tuple(str(value) for value in self._class_values)
        if self._class_values and not isinstance(self._class_values[0], str):
            request.notice(
                f"{self.label}: the values {self.classes[0]} to {self.classes[-1]} are stored as classes 0 to "  # type: ignore[index]
                f"{len(self._class_values) - 1}; --label-as Numbers stores the values"
            )
        self._lists: dict[str, set[tuple[int, ...]]] = {}
        self._images = ImageColumns(request)
        # Columns of bytes with a value that is no image.
        self._other_bytes: set[str] = set()
        self._dtypes = {field.name: self._dtype(field) for field in schema if field.name in self._names}

    def rows(self, numbers: Int64s | None = None) -> Iterator[tuple[int, Mapping[str, Encodable]]]:
        """Yield all rows that are not left out, in the order of the file."""
        assert numbers is None
        done = 0
        for batch in self._batches(self._names):
            columns = {name: self._values(name, batch.column(name), done) for name in batch.schema.names}
            for row in range(batch.num_rows):
                yield done + row, {name: values[row] for name, values in columns.items()}
            done += batch.num_rows
        self._images.report(self.label)

    def features(self) -> tuple[Feature, ...]:
        return tuple(self._feature(name) for name in sorted(self._dtypes))

    def labels(self) -> Int64s | None:
        if self.label is None or self._dtypes[self.label] not in ("int64", "bool"):
            return None
        if hasattr(self._table.schema.field(self.label).type, "value_type") and self.classes is None:
            return None
        done, found = 0, []
        for batch in self._batches([self.label]):
            found.append(np.asarray(self._values(self.label, batch.column(0), done), np.int64))
            done += batch.num_rows
        return np.concatenate(found)

    def groups(self) -> Int64s:
        import pyarrow as pa

        assert self._group is not None
        column = pa.chunked_array([batch.column(0) for batch in self._batches([self._group])])
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        indices = encoded.indices if hasattr(encoded, "indices") else encoded.combine_chunks().indices
        codes: Int64s = indices.to_numpy(zero_copy_only=False).astype(np.int64)
        return codes

    def origin(self, number: int) -> str:
        return f"row {self.row_numbers[number]}"

    def _feature(self, name: str) -> Feature:
        found = self._lists.get(name, {()})
        shape: tuple[int | None, ...] = next(iter(found))
        if len(found) > 1:
            shape = (None, *shape[1:])
        image = None if name in self._other_bytes else self._images.feature(name, self.label)
        if image is not None:
            return image.model_copy(update={"shape": (*shape, *image.shape)})
        return Feature(name=name, dtype=self._dtypes[name], shape=shape)

    def _dtype(self, field: Any) -> Dtype:
        import pyarrow.types as kinds

        type, depth = field.type, 0
        if field.name == self.label and self._class_values is not None:
            return "int64"
        while kinds.is_list(type) or kinds.is_large_list(type) or kinds.is_fixed_size_list(type):
            type, depth = type.value_type, depth + 1
        if _is_text(type) or kinds.is_binary(type) or kinds.is_large_binary(type):
            return "string"
        if depth and kinds.is_null(type):
            raise InvalidData(self._uri, f"column {field.name!r}: no list has a value", next_step="Leave it out")
        if kinds.is_null(type):
            raise self._missing()
        if kinds.is_boolean(type):
            return "bool"
        if kinds.is_integer(type):
            # TensorFlow has no feature of 64 bits without sign; numbers that do not fit are refused when encoded.
            return cast("Dtype", str(type)) if depth and str(type) != "uint64" else "int64"
        if kinds.is_float16(type) and depth:
            return "float16"
        if kinds.is_floating(type):
            return "float32"
        raise InvalidData(
            self._uri,
            f"column {field.name!r} has the type {field.type}",
            expected="numbers, booleans, text, bytes, or lists of them",
            next_step="Leave the column out, or turn it into numbers",
        )

    def _values_of_classes(self, label_as: LabelAs) -> list[Any] | None:
        """Return the sorted values of a label that is stored as class numbers; None for other labels."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.label is None:
            return None
        kind = self._table.schema.field(self.label).type
        is_integer = pa.types.is_integer(kind)
        if not _is_text(kind) and not (is_integer and label_as != "Numbers"):
            if label_as == "Classes":
                raise InvalidData(
                    self._uri, f"--label-as Classes: {self.label!r} has the type {kind}", expected="integers or text"
                )
            return None
        values: set[Any] = set()
        for batch in self._batches([self.label]):
            values.update(value for value in pc.unique(batch.column(0)).to_pylist() if value is not None)
            if is_integer and label_as == "Auto" and len(values) > _MAX_CLASSES:
                return None
        found = sorted(values)
        one_based = 1 < len(found) <= self.count // 2 and found == list(range(1, len(found) + 1))
        return found if not is_integer or label_as == "Classes" or one_based else None

    def _batches(self, columns: Sequence[str]) -> Iterator[Any]:
        import pyarrow as pa

        done = 0
        try:
            for batch in self._table.to_batches(columns=list(columns), batch_size=8192):
                kept = None if self._kept is None else self._kept[done : done + batch.num_rows]
                done += batch.num_rows
                yield batch if kept is None else batch.filter(pa.array(kept))
        except (pa.ArrowException, OSError) as error:
            raise InvalidData(self._uri, f"unreadable: {_arrow_message(error)}") from error

    def _gaps(self, columns: Sequence[str] | None = None) -> dict[str, Int64s]:
        """Return the numbers of the rows with a gap, by column, of all columns by default; only columns with gaps."""
        names = list(dict.fromkeys([*self._names, *self._keys])) if columns is None else columns
        found: dict[str, list[Int64s]] = {name: [] for name in names}
        done = 0
        for batch in self._batches(names) if names else ():
            for name in batch.schema.names:
                found[name].append(done + np.flatnonzero(self._is_gap(name, batch.column(name))))
            done += batch.num_rows
        gaps = {name: np.concatenate(rows) for name, rows in found.items()}
        return {name: rows for name, rows in gaps.items() if len(rows)}

    def _is_gap(self, name: str, column: Any) -> NDArray[np.bool_]:
        import pyarrow as pa

        found = _is_absent(column)
        if pa.types.is_floating(column.type) and (name == self.label or self._csv):
            values = column.to_numpy(zero_copy_only=False)
            found |= ~np.isfinite(values) if name == self.label else np.isnan(values)
        if name in self._keys and _is_text(column.type):
            found |= np.array([value == "" for value in column.to_pylist()], bool)
        return found

    def _drop_gaps(self, request: Request) -> None:
        """Leave out the rows with a gap. Raises InvalidData if no row has none."""
        gaps = self._gaps()
        kept = np.ones(self.count, bool)
        for rows in gaps.values():
            kept[rows] = False
        if not kept.any():
            raise self._missing()
        if gaps:
            left_out = self.count - int(kept.sum())
            request.notice(f"--missing Drop: {left_out:,} of {self.count:,} rows are left out: {self._describe(gaps)}")
        self._kept, self.row_numbers, self.count = kept, np.flatnonzero(kept), int(kept.sum())

    def _values(self, name: str, column: Any, done: int) -> list[Encodable]:
        """Return one value for each row of a batch that begins at row `done`."""
        if self._is_gap(name, column).any():
            raise self._missing()
        dtype = self._dtypes[name]
        if name == self.label and self._class_values is not None:
            numbers = {value: number for number, value in enumerate(self._class_values)}
            return [numbers[value] for value in column.to_pylist()]
        if hasattr(column.type, "value_type") and not _is_text(column.type):
            return self._vectors(name, column, done)
        if dtype == "string":
            return [self._bytes(name, row, value) for row, value in enumerate(column.to_pylist(), done)]
        return column.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]

    def _vectors(self, name: str, column: Any, done: int) -> list[Encodable]:
        stored = {"string": object, "float32": np.float32, "float16": np.float32}.get(self._dtypes[name], np.int64)
        shapes = self._lists.setdefault(name, set())
        rows: list[Encodable] = []
        for number, row in enumerate(column.to_pylist(), done):
            try:
                values = np.array(row, stored)
            except (TypeError, ValueError):
                # NumPy refuses lists of unequal length.
                raise self._uneven(name, number) from None
            if values.dtype != stored or any(shape[1:] != values.shape[1:] for shape in shapes if values.size):
                raise self._uneven(name, number)
            if values.size or not shapes:
                shapes.add(values.shape)
            else:
                shapes.add((0, *next(iter(shapes))[1:]))
            if stored is object:
                rows.append([self._bytes(name, number, value) for value in row] or np.zeros(0, "S1"))
            else:
                rows.append(values)
        return rows

    def _uneven(self, name: str, row: int) -> InvalidData:
        return InvalidData(
            self._uri,
            f"column {name!r}, row {row}: lists in a list of other lengths than before",
            expected="only the outer list of varying length",
            next_step="Fill the inner lists up to one length",
        )

    def _bytes(self, name: str, row: int, value: bytes | str) -> bytes | str:
        """Return text and bytes as they are, and an image as a job decodes it."""
        if name in self._other_bytes or not isinstance(value, bytes) or not images.is_encoded(value):
            self._other_bytes.add(name)
            return value
        try:
            content = images.prepare(value, is_label=name == self.label)
        except OSError as error:
            raise InvalidData(self._uri, f"column {name!r}, {self.origin(row)}: {error}") from error
        self._images.add(name, row, content)
        return content.stored

    def _missing(self) -> InvalidData:
        """Return the error for the gaps of all columns, with the options that leave them out."""
        gaps = self._gaps()
        rows = len(np.unique(np.concatenate(list(gaps.values()))))
        options = []
        if rows < self.count:
            options.append(f"--missing Drop leaves out {rows:,} of {self.count:,} rows")
        full = [name for name in self._names if name not in gaps and name != self.label]
        if full and not gaps.keys() & {self.label, *self._keys} and not any("," in name for name in full):
            options.append(f"{shlex.join(['--columns', ','.join(full)])} leaves out the columns with gaps")
        return InvalidData(
            self._uri,
            self._describe(gaps),
            expected="a value in every row",
            next_step=f"Fill the gaps{'; or ' if options else ''}{', '.join(options)}",
        )

    def _describe(self, gaps: Mapping[str, Int64s]) -> str:
        first = {name: int(rows[0]) for name, rows in list(gaps.items())[:_SHOWN_COLUMNS]}
        places = {row: f"row {row}" for row in first.values()}
        if self._csv is not None:
            places = {row: f"line {line}" for row, line in _lines(self._csv, places).items()}
        found = [
            f"column {name!r}: {len(gaps[name]):,} {'row has' if len(gaps[name]) == 1 else 'rows have'} no "
            f"{'label' if name == self.label else 'value'}, the first in {places[row]}"
            for name, row in first.items()
        ]
        more = [f"{len(gaps) - len(first)} more columns"] if len(gaps) > len(first) else []
        return "; ".join(found + more)


def _is_absent(column: Any) -> NDArray[np.bool_]:
    """Return whether each value of an Arrow array, or a value in it if it is a list, is absent."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found: NDArray[np.bool_] = np.array(column.is_null().to_numpy(zero_copy_only=False))
    kinds = pa.types
    if kinds.is_list(column.type) or kinds.is_large_list(column.type) or kinds.is_fixed_size_list(column.type):
        lists = np.asarray(pc.list_parent_indices(column))
        found[lists[_is_absent(pc.list_flatten(column))]] = True
    return found


def _lines(path: Path, rows: Collection[int]) -> dict[int, int]:
    """Return the first line of each of these rows in a CSV, 1 for the header's; a quoted value may have many lines."""
    found: dict[int, int] = {}
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        reader = csv.reader(file)
        row, line = -1, 1
        try:
            for values in reader:
                # Arrow ignores empty lines.
                if values:
                    if row in rows:
                        found[row] = line
                    row += 1
                if len(found) == len(set(rows)):
                    break
                line = reader.line_num + 1
        except csv.Error:
            # A value is longer than the csv module allows.
            pass
    return {row: found.get(row, row + 2) for row in rows}


def first_values(uri: str, path: Path, rows: int) -> dict[str, list[Any]]:
    """Return the values of the first rows by column; of a CSV as text, so that `007` stays a name.

    Raises InvalidData for a file that is unreadable or without a row.
    """
    table = _open(uri, path, as_text=_open(uri, path).schema.names)
    found: dict[str, list[Any]] = _read(uri, lambda: table.head(rows)).to_pydict()
    return found


def column_values(uri: str, path: Path, name: str) -> list[Any]:
    """Return all values of one column as `first_values` does."""
    table = _open(uri, path, as_text=[name])
    return _read(uri, lambda: table.to_table(columns=[name])).column(0).to_pylist()  # type: ignore[no-any-return]


def _open(uri: str, path: Path, *, as_text: Sequence[str] = ()) -> Any:
    """Return the file as a data set; raises InvalidData without a row."""
    import pyarrow as pa
    import pyarrow.csv as pc
    import pyarrow.dataset as ds

    options = pc.ConvertOptions(column_types=dict.fromkeys(as_text, pa.string()))
    is_csv = path.suffix.lower() == ".csv"
    table = _read(
        uri, lambda: ds.dataset(path, format=ds.CsvFileFormat(convert_options=options) if is_csv else "parquet")
    )
    names = table.schema.names
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InvalidData(uri, f"two columns are called {repeated[0]!r}")
    if not _read(uri, lambda: table.head(1)).num_rows:
        raise InvalidData(uri, "no row in it")
    return table


def _read(uri: str, call: Callable[[], Any]) -> Any:
    import pyarrow as pa

    try:
        return call()
    except (pa.ArrowException, OSError) as error:
        raise InvalidData(uri, f"unreadable: {_arrow_message(error)}") from error


def _is_text(type: Any) -> bool:
    import pyarrow.types as kinds

    text = type.value_type if kinds.is_dictionary(type) else type
    return bool(kinds.is_string(text) or kinds.is_large_string(text))


def _arrow_message(error: Exception) -> str:
    # Arrow prefixes the cause with the names of its layers.
    return str(error).partition("\n")[0].rpartition("Invalid: ")[2]

"""Rows of an Arrow table as records: columns of values, and columns of files and images whose contents are stored."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from mptraining_api.problems import InvalidData
from mptraining_records.convert import images
from mptraining_records.convert.arrow_files import STORED_AS_FLOAT32, Lines, arrow_errors
from mptraining_records.convert.gaps import Gaps, is_gap, is_list, is_text
from mptraining_records.convert.images import Content, ImageColumn
from mptraining_records.convert.request import Request, check_columns
from mptraining_records.reading.order import Int64s
from mptraining_records.tfrecord import example
from mptraining_records.tfrecord.example import Encodable
from mptraining_records.tfrecord.features import Dtype, Feature, choose_label

_BATCH = 1024
_THREADS = 8
_AHEAD = 32
# More distinct integers than this are no one-based classes.
_MAX_CLASSES = 1000
# By the names of Arrow's types. A column without a value is refused as one with gaps.
_DTYPES: Mapping[str, Dtype] = {"bool": "bool", "float": "float32", "double": "float32", "null": "float32"}


class FileColumn(NamedTuple):
    """The column of the table that has the URIs of the files, and the function that loads one."""

    column: str
    load: Callable[[str], Content]


class Table:
    """Numbers, text, bytes, and lists of them; the length of a list may vary, that of a list in it not.

    The rows are those of an Arrow table in memory, which are read in any order, or of a stream such as a
    `pyarrow.dataset.Dataset`. `files` are features that are the contents of files. Other bytes that are images are
    stored as images. `described` are the features of columns that need no inspection.

    A text label is stored as class numbers, float64 as float32. An integer label is stored as class numbers if the
    request says so, or if its values are 1, 2, …, k without a gap, since classes are numbered from 0.

    A row has a gap where a value, or one in its list, is absent, where a label is not finite, and where a CSV has NaN
    as a number; in the column of groups and in `keys`, which are not stored, an empty text is a gap too. Such rows are
    refused, or left out on request. A row whose image cannot be decoded is refused, or skipped on request.
    """

    def __init__(
        self,
        uri: str,
        data: Any,
        request: Request,
        *,
        files: Mapping[str, FileColumn] | None = None,
        described: Mapping[str, Feature] | None = None,
        keys: Sequence[str] = (),
        csv: Path | None = None,
    ) -> None:
        import pyarrow as pa

        self.random_access = isinstance(data, pa.Table)
        self._uri, self._data, self._request, self._csv = uri, data, request, csv
        self._files, self._described = files or {}, described or {}
        names = list(data.schema.names)
        self.label = choose_label(uri, names, request.label)
        check_columns(uri, "--group", [request.group], names)
        self._names = [name for name in request.stored_columns(uri, names, self.label) if name not in self._files]
        self._keys = [name for name in dict.fromkeys([*keys, request.group]) if name is not None]
        self._types = {name: data.schema.field(name).type for name in self._names}
        self._dtypes = {name: self._dtype(name) for name in self._names if name not in self._described}
        # The sizes of the lists in a column: those of the outer ones, and the shape of what is in them.
        self._lengths: dict[str, set[int]] = defaultdict(set)
        self._inner: dict[str, tuple[int, ...]] = {}
        # The columns of contents, without those of bytes of which one is no image.
        self._load: dict[str, Callable[[Any], Content]] = {name: file.load for name, file in self._files.items()}
        for name in self._dtypes:
            if _is_binary(_innermost(self._types[name])):
                self._load[name] = partial(images.prepare, is_label=name == self.label)
        self._images: dict[str, ImageColumn] = defaultdict(ImageColumn)
        # The preview and the conversion read the first rows, which are reported once.
        self._skipped: set[int] = set()
        # The numbers in the table of the rows that are not left out, and what all its rows have.
        self.row_numbers = np.zeros(0, np.int64)
        self.classes: tuple[str, ...] | None = None
        self._labels: Int64s | None = None
        self._groups = np.zeros(0, np.int64)
        self._survey()

    @property
    def count(self) -> int:
        return len(self.row_numbers)

    def labels(self) -> Int64s | None:
        """Return the label of every row as stored; None if it is not one integer."""
        return None if self._labels is None else self._labels[self.row_numbers]

    def groups(self) -> Int64s:
        """Return a number for the value of every row in the column `group` of the request."""
        groups: Int64s = self._groups[self.row_numbers]
        return groups

    def features(self) -> tuple[Feature, ...]:
        """Return the features, which are complete after all rows are read."""
        return tuple(map(self._feature, [*self._files, *sorted(self._names)]))

    def origin(self, number: int) -> str:
        """Return where a row is from, for people."""
        row = int(self.row_numbers[number])
        if isinstance(self._data, Lines):
            return f"line {self._data.line_of(row)}"
        return ", ".join(str(self._data.column(file.column)[row]) for file in self._files.values()) or f"row {row}"

    def leave_out(self, numbers: Sequence[int]) -> None:
        """Leave out these rows; the others are numbered again."""
        self.row_numbers = np.delete(self.row_numbers, numbers)

    def records(self, order: Int64s | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield number and record of all rows, or of those of a table in memory in this order."""
        self._images.clear()
        pending = deque[tuple[int, dict[str, Any], Future[dict[str, list[Content]]] | None]]()
        pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="contents")
        try:
            for number, row in self._rows(order):
                for name in self._load.keys() - self._files.keys():
                    # The bytes of this column stay as they are.
                    if not all(map(images.is_encoded, _as_list(row[name]))):
                        del self._load[name]
                loading = pool.submit(self._contents, number, row, dict(self._load)) if self._load else None
                pending.append((number, row, loading))
                if len(pending) > _AHEAD:
                    yield from self._finish(*pending.popleft())
            while pending:
                yield from self._finish(*pending.popleft())
        finally:
            pool.shutdown(cancel_futures=True)

    def report(self) -> None:
        """Report how the images were changed, after all rows are read."""
        for name in self._load:
            for line in self._images[name].report(self._feature(name)):
                self._request.notice(line)

    def _contents(
        self, number: int, row: Mapping[str, Any], load: Mapping[str, Callable[[Any], Content]]
    ) -> dict[str, list[Content]]:
        """Load the contents of a row. Raises InvalidData if one cannot be decoded."""
        contents = {}
        for name in load:
            try:
                contents[name] = [load[name](value) for value in _as_list(row[name])]
            except OSError as error:
                raise InvalidData(self._uri, f"column {name!r}, {self.origin(number)}: {error}") from error
        return contents

    def _finish(
        self, number: int, row: dict[str, Any], loading: Future[dict[str, list[Content]]] | None
    ) -> Iterator[tuple[int, bytes]]:
        """Yield number and record of a row with its contents; nothing if it is skipped."""
        try:
            contents = loading.result() if loading else {}
        except InvalidData as problem:
            if self._request.bad_images == "Fail":
                raise
            if number not in self._skipped:
                self._skipped.add(number)
                self._request.notice(f"skipped: {problem.where}: {problem.found}")
            return
        for name, loaded in contents.items():
            self._images[name].add(loaded)
            if loaded:
                stored = [content.stored for content in loaded]
                row[name] = stored if isinstance(row[name], list) else stored[0]
        yield number, example.encode(row)

    def _rows(self, order: Int64s | None) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield number and values of the rows; the URIs of files are the values of their features."""
        columns = {name: file.column for name, file in self._files.items()} | {name: name for name in self._names}
        for numbers, batch in self._numbered_batches(list(dict.fromkeys(columns.values())), order):
            values = {name: self._column(name, batch.column(column), numbers) for name, column in columns.items()}
            for row, number in enumerate(numbers.tolist()):
                yield number, {name: column[row] for name, column in values.items()}

    def _numbered_batches(self, columns: Sequence[str], order: Int64s | None) -> Iterator[tuple[Int64s, Any]]:
        """Yield the numbers of rows that are not left out, and a batch of their values."""
        if self.random_access:
            order = np.arange(self.count) if order is None else order
            for start in range(0, len(order), _BATCH):
                numbers = order[start : start + _BATCH]
                rows = self._data.select(columns).take(self.row_numbers[numbers])
                yield numbers, rows.combine_chunks().to_batches()[0]
            return
        begin = done = 0
        for batch in self._batches(columns):
            end = int(np.searchsorted(self.row_numbers, begin + batch.num_rows))
            yield np.arange(done, end), batch.take(self.row_numbers[done:end] - begin)
            begin, done = begin + batch.num_rows, end

    def _batches(self, columns: Sequence[str]) -> Iterator[Any]:
        import pyarrow.dataset as ds

        data = ds.dataset(self._data) if self.random_access else self._data
        with arrow_errors(self._uri):
            yield from data.to_batches(columns=list(columns), batch_size=_BATCH)

    def _survey(self) -> None:
        """Read all rows once for gaps, labels, classes and groups."""
        import pyarrow as pa

        label_type = self._types.get(self.label or "", pa.null())
        is_class, is_integer = is_text(label_type), pa.types.is_integer(label_type)
        has_labels = is_class or is_integer or pa.types.is_boolean(label_type)
        if self._request.label_as == "Classes" and self.label and not (is_class or is_integer):
            mistake = f"--label-as classes: {self.label!r} has the type {label_type}"
            raise InvalidData(self._uri, mistake, expected="integers or text")
        gaps: dict[str, list[Int64s]] = defaultdict(list)
        labels, groups = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        texts: dict[str, int] = {}
        group_values: dict[str, int] = {}
        count = 0
        checked = list(dict.fromkeys([*self._names, *self._keys]))
        for batch in self._batches(checked or self._data.schema.names[:1]):
            for name in checked:
                is_label, is_key, is_csv = name == self.label, name in self._keys, self._csv is not None
                rows = np.flatnonzero(is_gap(batch.column(name), is_label=is_label, is_key=is_key, is_csv=is_csv))
                if len(rows):
                    gaps[name].append(count + rows)
            if is_class:
                labels.append(_codes(batch.column(self.label), texts))
            elif has_labels:
                labels.append(batch.column(self.label).cast("int64").fill_null(0).to_numpy())
            if self._request.group is not None:
                groups.append(_codes(batch.column(self._request.group), group_values))
            count += batch.num_rows
        if not count:
            raise InvalidData(self._uri, "no row in it")
        self._groups = np.concatenate(groups)
        gap_rows = {name: np.concatenate(gaps[name]) for name in checked if gaps[name]}
        self._leave_out_gaps(Gaps(gap_rows, count, self.label, self._csv))
        if has_labels:
            self._labels = np.concatenate(labels)
            if is_class or (is_integer and self._request.label_as != "Numbers"):
                self._number_classes(list(texts) if is_class else None)

    def _leave_out_gaps(self, gaps: Gaps) -> None:
        """Set the numbers of the rows in the file that stay. Raises InvalidData if gaps are refused or in all rows."""
        self.row_numbers = gaps.complete
        if not gaps.rows:
            return
        if self._request.missing == "Error" or not self.count:
            raise gaps.problem(self._uri, self._names, self._keys)
        left_out = gaps.count - self.count
        self._request.notice(f"--missing drop: {left_out:,} of {gaps.count:,} rows are left out: {gaps.describe()}")

    def _number_classes(self, texts: Sequence[str] | None) -> None:
        """Number the labels in the order of their values; integers are classes only if the request or they say so.

        `texts` has the values of text by their codes.
        """
        assert self._labels is not None
        values = np.unique(self._labels[self.row_numbers]).tolist()
        count = len(values)
        if texts is not None:
            values.sort(key=texts.__getitem__)
        elif self._request.label_as == "Auto" and not (
            1 < count <= min(_MAX_CLASSES, self.count // 2) and values == list(range(1, count + 1))
        ):
            return
        else:
            self._request.notice(
                f"{self.label}: the values {values[0]} to {values[-1]} are stored as classes 0 to {count - 1}; "
                "--label-as numbers stores the values"
            )
        self.classes = tuple(str(value) if texts is None else texts[value] for value in values)
        numbers = {value: number for number, value in enumerate(values)}
        self._labels = np.array([numbers.get(value, 0) for value in self._labels.tolist()], np.int64)

    def _column(self, name: str, column: Any, numbers: Int64s) -> list[Any]:
        """Return one value for each row of a batch."""
        if name == self.label and self._labels is not None:
            return cast("list[Any]", self._labels[self.row_numbers[numbers]].tolist())
        feature = self._described.get(name)
        if feature is not None and feature.shape and feature.decode is None and feature.dtype != "string":
            return [np.frombuffer(value, feature.dtype) for value in column.to_pylist()]
        if name in self._dtypes and is_list(column.type):
            return [self._vector(name, *row) for row in zip(numbers, column.to_pylist(), strict=True)]
        return cast("list[Any]", column.to_pylist())

    def _vector(self, name: str, number: int, values: list[Any]) -> Encodable:
        """Return the values of a list. Raises InvalidData if a list in it has another length than before."""
        dtype = self._dtypes[name]
        stored = {"string": object, "float32": np.float32, "float16": np.float32}.get(dtype, np.int64)
        try:
            array = np.array(values, stored)
        except (TypeError, ValueError):
            # NumPy refuses lists of unequal length.
            array = np.zeros(0, bool)
        if array.dtype != stored or (array.size and self._inner.setdefault(name, array.shape[1:]) != array.shape[1:]):
            mistake = f"column {name!r}, {self.origin(number)}: lists in a list of other lengths than before"
            expected, step = "only the outer list of varying length", "Fill the inner lists up to one length"
            raise InvalidData(self._uri, mistake, expected=expected, next_step=step)
        self._lengths[name].add(len(values))
        return (values or np.zeros(0, "S1")) if stored is object else array

    def _feature(self, name: str) -> Feature:
        if name in self._described:
            return self._described[name]
        lengths = self._lengths[name]
        length = next(iter(lengths)) if len(lengths) == 1 else None
        shape: tuple[int | None, ...] = (length, *self._inner.get(name, ())) if lengths else ()
        image = self._images[name].feature(name, is_label=name == self.label) if name in self._load else None
        if image is not None:
            return image.model_copy(update={"shape": (*shape, *image.shape)})
        is_class = name == self.label and self.classes is not None
        return Feature(name=name, dtype="int64" if is_class else self._dtypes.get(name, "string"), shape=shape)

    def _dtype(self, name: str) -> Dtype:
        """Return the dtype of a column's feature. Raises InvalidData if it cannot be one."""
        import pyarrow.types as kinds

        in_list, arrow_type = is_list(self._types[name]), _innermost(self._types[name])
        kind = str(arrow_type)
        if is_text(arrow_type) or _is_binary(arrow_type):
            return "string"
        if in_list and kinds.is_null(arrow_type):
            raise InvalidData(self._uri, f"column {name!r}: no list has a value", next_step="Leave it out")
        if kinds.is_integer(arrow_type):
            # TensorFlow has no feature of 64 bits without sign; numbers that do not fit are refused when encoded.
            return cast("Dtype", kind) if in_list and kind != "uint64" else "int64"
        if kinds.is_float64(arrow_type):
            self._request.notice(f"{name}: {STORED_AS_FLOAT32}")
        if kinds.is_float16(arrow_type):
            return "float16" if in_list else "float32"
        if kind not in _DTYPES:
            mistake = f"column {name!r} has the type {self._types[name]}"
            expected = "numbers, booleans, text, bytes, or lists of them"
            step = "Leave the column out, or turn it into numbers"
            raise InvalidData(self._uri, mistake, expected=expected, next_step=step)
        return _DTYPES[kind]


def _innermost(arrow_type: Any) -> Any:
    """Return the type of the values in a list, or in lists in it."""
    return _innermost(arrow_type.value_type) if is_list(arrow_type) else arrow_type


def _is_binary(arrow_type: Any) -> bool:
    return str(arrow_type) in ("binary", "large_binary")


def _as_list(value: Any) -> list[Any]:
    """Return the values of a list, which is an array where it has none, or the single value."""
    return list(value) if isinstance(value, list | np.ndarray) else [value]


def _codes(column: Any, known: dict[str, int]) -> Int64s:
    """Return a number for each value, in the order in which `known` got them."""
    return np.array([known.setdefault(str(value), len(known)) for value in column.to_pylist()], np.int64)

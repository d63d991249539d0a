"""Rows whose columns are the contents of files, loaded by several threads in the order of the request."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mptraining_api.problems import InvalidData
from mptraining_records.convert.request import Request
from mptraining_records.reading.order import Int64s
from mptraining_records.tfrecord import features
from mptraining_records.tfrecord.example import Encodable
from mptraining_records.tfrecord.features import Decode, Feature

_THREADS = 8
_AHEAD = 32


class Content(NamedTuple):
    """The bytes to store; of an image also its encoding and its shape [height, width, channels]."""

    stored: bytes
    kind: Decode | None = None
    shape: tuple[int, int, int] | None = None


class FileRows:
    """A source of rows: `files` has the URIs of each column by row, `values` the columns that are no files.

    `load` returns the content of one file or raises InvalidData, which skips its row if the request asks for that.
    """

    random_access = True

    def __init__(
        self,
        request: Request,
        files: Mapping[str, Sequence[str]],
        load: Callable[[str], Content],
        *,
        values: Mapping[str, Sequence[Encodable] | NDArray[Any]],
        value_features: Sequence[Feature] = (),
        groups: NDArray[Any] | None = None,
        label: str | None = None,
        classes: tuple[str, ...] | None = None,
    ) -> None:
        self.count = len(next(iter(files.values())))
        self.label = label
        self.classes = classes
        self._request = request
        self._files = files
        self._values = values
        self._value_features = tuple(value_features)
        self._groups = groups
        self._load = load
        self._kinds: dict[str, set[Decode | None]] = {name: set() for name in files}
        # The preview and the conversion read the first rows, which are reported once.
        self._skipped: set[int] = set()
        self._shapes: dict[str, set[tuple[int, int, int]]] = {name: set() for name in files}

    def rows(self, numbers: Int64s | None = None) -> Iterator[tuple[int, Mapping[str, Encodable]]]:
        wanted = range(self.count) if numbers is None else numbers.tolist()
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="files") as pool:
            pending = deque[Future[dict[str, Content]]]()
            try:
                for at, number in enumerate(wanted):
                    for ahead in wanted[at + len(pending) : at + _AHEAD]:
                        pending.append(pool.submit(self._load_row, ahead))
                    try:
                        contents = pending.popleft().result()
                    except InvalidData as problem:
                        if not self._request.skip_bad_images:
                            raise
                        if number not in self._skipped:
                            self._skipped.add(number)
                            self._request.notice(f"skipped: {problem.where}: {problem.found}")
                        continue
                    row: dict[str, Encodable] = {name: values[number] for name, values in self._values.items()}
                    for name, content in contents.items():
                        row[name] = content.stored
                        self._kinds[name].add(content.kind)
                        if content.shape:
                            self._shapes[name].add(content.shape)
                    yield number, row
            finally:
                pool.shutdown(cancel_futures=True)

    def features(self) -> tuple[Feature, ...]:
        return (*(self._file_feature(name) for name in self._files), *self._value_features)

    def labels(self) -> Int64s | None:
        if self.label is None or self.label not in self._values:
            return None
        values = np.asarray(self._values[self.label])
        return values.astype(np.int64) if values.dtype.kind in "bui" else None

    def groups(self) -> NDArray[Any]:
        if self._groups is None:
            raise InvalidData(
                "--group",
                f"{self._request.group!r}: these files have no columns",
                expected="a table with a column of that name",
                next_step="Write a CSV of names, labels and groups, and convert it with --images",
            )
        return self._groups

    def origin(self, number: int) -> str:
        return ", ".join(files[number] for files in self._files.values())

    def _load_row(self, number: int) -> dict[str, Content]:
        return {name: self._load(files[number]) for name, files in self._files.items()}

    def _file_feature(self, name: str) -> Feature:
        kinds = {kind for kind in self._kinds[name] if kind}
        if kinds:
            return features.image_feature(name, kinds, self._shapes[name])
        return Feature(name=name, dtype="string")

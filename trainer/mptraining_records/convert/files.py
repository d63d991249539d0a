"""Rows whose columns are the contents of files, loaded by several threads in the order of the request."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mptraining_api.problems import InvalidData
from mptraining_records.convert.request import Request
from mptraining_records.reading.order import Int64s
from mptraining_records.tfrecord import features
from mptraining_records.tfrecord.example import Encodable
from mptraining_records.tfrecord.features import Feature, StoredImage

_THREADS = 8
_AHEAD = 32


class Content(NamedTuple):
    """The bytes to store; of an image also what they are, and what was changed, as phrases after "3 images"."""

    stored: bytes
    image: StoredImage | None = None
    notes: tuple[str, ...] = ()


_TRANSPARENT = "with transparency, which a job drops because other images have none"


class ImageColumns:
    """The images that a source has read, by column, and the numbers of the rows in which they were changed."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._images: dict[str, set[StoredImage]] = defaultdict(set)
        self._notes: dict[tuple[str, str], set[int]] = defaultdict(set)
        self._reported = False

    def add(self, name: str, number: int, content: Content) -> None:
        """Add an image of the row `number`."""
        if content.image is None:
            return
        self._images[name].add(content.image)
        for note in (*content.notes, *([_TRANSPARENT] if content.image.shape[-1] == 4 else ())):
            self._notes[name, note].add(number)

    def feature(self, name: str, label: str | None) -> Feature | None:
        """Return the feature of the images of a column; None without images."""
        images = self._images.get(name)
        return features.image_feature(name, images, is_label=name == label) if images else None

    def report(self, label: str | None) -> None:
        """Report, once all rows are read, how many have an image that was changed."""
        for (name, note), rows in self._notes.items() if not self._reported else ():
            feature = self.feature(name, label)
            if note != _TRANSPARENT or (feature and feature.shape[-1] != 4):
                self._request.notice(f"{name}: {len(rows):,} {'image' if len(rows) == 1 else 'images'} {note}")
        self._reported = True


@dataclass
class FileRows:
    """A source of rows: `files` has the URIs of each column by row, `values` the columns that are no files.

    `load` returns the content of one file, by feature, or raises InvalidData, which skips its row if the request asks
    for that.
    """

    request: Request
    files: Mapping[str, Sequence[str]]
    load: Mapping[str, Callable[[str], Content]]
    values: Mapping[str, Sequence[Encodable] | NDArray[Any]] = field(default_factory=dict)
    value_features: Sequence[Feature] = ()
    group_of_row: NDArray[Any] | None = None
    label: str | None = None
    classes: tuple[str, ...] | None = None
    random_access: bool = True

    def __post_init__(self) -> None:
        self.count = len(next(iter(self.files.values())))
        # The preview and the conversion read the first rows, which are reported once.
        self._skipped: set[int] = set()
        self._images = ImageColumns(self.request)

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
                        if not self.request.skip_bad_images:
                            raise
                        if number not in self._skipped:
                            self._skipped.add(number)
                            self.request.notice(f"skipped: {problem.where}: {problem.found}")
                        continue
                    row: dict[str, Encodable] = {name: values[number] for name, values in self.values.items()}
                    for name, content in contents.items():
                        row[name] = content.stored
                        self._images.add(name, number, content)
                    yield number, row
                if len(wanted) == self.count:
                    self._images.report(self.label)
            finally:
                pool.shutdown(cancel_futures=True)

    def features(self) -> tuple[Feature, ...]:
        text = (Feature(name=name, dtype="string") for name in self.files)
        files = (self._images.feature(each.name, self.label) or each for each in text)
        return (*files, *self.value_features)

    def labels(self) -> Int64s | None:
        if self.label is None or self.label not in self.values:
            return None
        values = np.asarray(self.values[self.label])
        return values.astype(np.int64) if values.dtype.kind in "bui" else None

    def groups(self) -> NDArray[Any]:
        if self.group_of_row is None:
            raise InvalidData(
                "--group",
                f"{self.request.group!r}: these files have no columns",
                expected="a table with a column of that name",
                next_step="Write a CSV of names, labels and groups, and convert it with --images",
            )
        return self.group_of_row

    def origin(self, number: int) -> str:
        return ", ".join(files[number] for files in self.files.values())

    def _load_row(self, number: int) -> dict[str, Content]:
        return {name: self.load[name](files[number]) for name, files in self.files.items()}

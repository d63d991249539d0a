"""Text as a source of rows: whole files, or the lines of one file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from mptraining_api.problems import InvalidData
from mptraining_records.convert.files import Content
from mptraining_records.convert.request import Request
from mptraining_records.reading.order import Int64s
from mptraining_records.tfrecord.example import Encodable
from mptraining_records.tfrecord.features import Feature
from mptraining_storage import storage

TEXT = "text"


class Lines:
    """The lines of a text file that are not empty, without labels."""

    random_access = False
    label = None
    classes = None

    def __init__(self, uri: str, path: Path, request: Request) -> None:
        for option, value in (("--label", request.label), ("--group", request.group)):
            if value is not None:
                raise InvalidData(
                    uri,
                    f"no column {value!r} for {option} in a text file",
                    expected="a CSV, or a folder of .txt files with one sub-folder for each class",
                )
        self._uri = uri
        self._path = path
        self.count = sum(1 for _ in self.rows())
        if not self.count:
            raise InvalidData(uri, "no line in it")

    def rows(self, numbers: Int64s | None = None) -> Iterator[tuple[int, Mapping[str, Encodable]]]:
        assert numbers is None
        number = 0
        with self._path.open("rb") as file:
            for line in file:
                content = line.rstrip(b"\r\n")
                if content:
                    yield number, {TEXT: _checked(self._uri, content)}
                    number += 1

    def features(self) -> tuple[Feature, ...]:
        return (Feature(name=TEXT, dtype="string"),)

    def labels(self) -> Int64s | None:
        return None

    def groups(self) -> Int64s:
        raise AssertionError("a request with a group is refused")

    def origin(self, number: int) -> str:
        return f"line {number}"


def load(uri: str) -> Content:
    """Return the content of a text file; raises InvalidData if it is not UTF-8."""
    return Content(_checked(uri, storage.read(uri)))


def _checked(uri: str, content: bytes) -> bytes:
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise InvalidData(uri, f"not UTF-8 at {content[:40]!r}", next_step="Convert the file to UTF-8") from error
    return content

"""Parts of a prediction: ranges of records, each with a Parquet file and a JSON file that marks it as complete.

The parts and the batches in them depend only on the number of records and the batch size, so that the joined file does
not depend on the number of workers, and a restart keeps the parts that are complete.
"""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mptraining_api.problems import InvalidData
from mptraining_storage import storage

# Many parts share the work evenly among workers; a long part is a file of a reasonable size.
_PARTS = 64
_LONGEST = 1 << 16
_POLL_SECONDS = 2.0


@dataclass(frozen=True)
class Part:
    """The records `first` … `end` - 1."""

    number: int
    of: int
    first: int
    end: int

    @property
    def name(self) -> str:
        return f"part-{self.number:05d}-of-{self.of:05d}"

    @property
    def records(self) -> int:
        return self.end - self.first


def plan(count: int, batch: int) -> tuple[Part, ...]:
    """Return the parts of `count` records; all but the last are whole batches."""
    records = min(_LONGEST, -(-count // _PARTS))
    size = max(1, -(-records // batch)) * batch
    of = -(-count // size)
    return tuple(Part(number, of, number * size, min(count, (number + 1) * size)) for number in range(of))


def share(parts: Sequence[Part], worker: int, workers: int) -> tuple[Part, ...]:
    """Return the parts of one worker."""
    return tuple(part for part in parts if part.number % workers == worker)


def identity_of(*values: object) -> str:
    """Return a digest of everything that the content of the parts depends on; the values are JSON values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


class PartFiles:
    """The files of the parts in `folder`; a part of another `identity` is not complete."""

    def __init__(self, folder: str, identity: str) -> None:
        self._folder = folder
        self._identity = identity

    def is_complete(self, part: Part) -> bool:
        """Return whether the part was written completely, for this identity."""
        return self._mark(part) is not None

    def note(self, part: Part) -> Any:
        """Return what `write` got with a complete part."""
        return (self._mark(part) or {}).get("note")

    def write(self, part: Part, table: pa.Table, note: Any) -> None:
        """Write a part, then its mark with `note`, a JSON value."""
        with tempfile.TemporaryDirectory(prefix="mptraining-") as scratch:
            path = Path(scratch, "part.parquet")
            pq.write_table(table, path)
            storage.upload(path, self._uri(part, "parquet"))
        schema = base64.b64encode(table.schema.serialize()).decode()
        mark = {"identity": self._identity, "records": part.records, "schema": schema, "note": note}
        storage.write(self._uri(part, "json"), json.dumps(mark).encode())

    def join(self, parts: Sequence[Part], to: str, before_upload: Callable[[], None]) -> None:
        """Write all parts, in order, as one file at `to`, which appears or is replaced in one step.

        The type of a column without values in a part, such as that of bad records only, is that of the other parts.
        Raises InvalidData if a part has other columns.
        """
        with tempfile.TemporaryDirectory(prefix="mptraining-") as scratch:
            path = Path(scratch, "predictions.parquet")
            schema = self._schema(parts)
            with pq.ParquetWriter(path, schema) as writer:
                for part in parts:
                    uri = self._uri(part, "parquet")
                    with storage.as_local_file(uri) as local:
                        table = pq.read_table(local)
                    try:
                        writer.write_table(table.cast(schema))
                    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                        raise self._other_columns(uri, table.schema, schema) from None
            before_upload()
            storage.upload(path, to)

    def _schema(self, parts: Sequence[Part]) -> pa.Schema:
        """Return the common schema of complete parts."""
        marks = [(self._mark(part) or {}).get("schema", "") for part in parts]
        common, *others = [pa.ipc.read_schema(pa.py_buffer(base64.b64decode(mark))) for mark in marks]
        for part, schema in zip(parts[1:], others, strict=True):
            try:
                unified = pa.unify_schemas([common, schema], promote_options="permissive")
            except (pa.ArrowInvalid, pa.ArrowTypeError):
                unified = None
            if unified is None or schema.names != common.names:
                raise self._other_columns(self._uri(part, "parquet"), schema, common)
            common = unified
        return common

    def _other_columns(self, uri: str, schema: pa.Schema, common: pa.Schema) -> InvalidData:
        mistake = f"the columns {schema}, and the parts before have {common}"
        return InvalidData(uri, " ".join(mistake.split()), next_step=f"Delete {self._folder}.")

    def wait(self, parts: Sequence[Part], wait: Callable[[float], bool]) -> bool:
        """Wait until every part is complete; return False if `wait` has returned True before.

        `wait` waits for some seconds, and returns whether this process was told to stop.
        """
        missing = list(parts)
        while missing := [part for part in missing if not self.is_complete(part)]:
            if wait(_POLL_SECONDS):
                return False
        return True

    def delete(self, before: Callable[[], None]) -> None:
        """Call `before`, which raises if another attempt owns the parts, and delete all of them."""
        before()
        # A process may be killed here: a mark without its file would make a missing part complete.
        for stored in storage.list_objects(self._folder):
            if stored.name.endswith(".json"):
                storage.delete(stored.uri)
        storage.delete_prefix(self._folder)

    def _mark(self, part: Part) -> dict[str, Any] | None:
        uri = self._uri(part, "json")
        if not storage.exists(uri):
            return None
        try:
            mark = json.loads(storage.read(uri))
        except ValueError:
            return None
        if not isinstance(mark, dict) or mark.get("identity") != self._identity or "schema" not in mark:
            return None
        return mark

    def _uri(self, part: Part, suffix: str) -> str:
        return storage.join(self._folder, f"{part.name}.{suffix}")

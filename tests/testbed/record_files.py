"""Real files in temporary folders, and a real object server (fake-gcs-server) for gs://."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from mptraining_records.index.shard_index import ShardIndex
from mptraining_records.index.sidecar import Sidecars
from mptraining_records.tfrecord import framing
from mptraining_storage import storage
from mptraining_storage.preconditions import StoredObject


@pytest.fixture(params=["disk", "bucket"])
def folder(request: pytest.FixtureRequest) -> str:
    """A folder on disk, then one in a bucket: both must behave alike."""
    if request.param == "disk":
        return str(request.getfixturevalue("tmp_path"))
    return f"{request.getfixturevalue('bucket')}/data"


WriteShard = Callable[[str, Sequence[bytes]], str]


@pytest.fixture
def write_shard() -> WriteShard:
    """Writes records as one TFRecord file; returns its URI."""

    def write(uri: str, records: Sequence[bytes]) -> str:
        storage.write(uri, b"".join(map(framing.encode, records)))
        return uri

    return write


@pytest.fixture
def flip() -> Callable[[str, int], None]:
    """Flips the bits of one byte of a stored object; a negative place counts from its end."""

    def flip_byte(uri: str, at: int) -> None:
        content = bytearray(storage.read(uri))
        content[at] ^= 0xFF
        storage.write(uri, bytes(content))

    return flip_byte


def index_in_sidecar(stored: StoredObject) -> ShardIndex | None:
    """Return the index that a sidecar has of exactly this version of the object."""
    sidecars = Sidecars([stored])
    sidecars.load()
    return sidecars.known.get(stored.uri)

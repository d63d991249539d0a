"""Where every record lies: built once per job, so that any record can be read without those before it."""

from __future__ import annotations

import functools
import hashlib
import mmap
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from mptraining_api.problems import InvalidData
from mptraining_records import framing, storage
from mptraining_records.framing import BadRecord
from mptraining_records.storage import StoredObject

Int64s = NDArray[np.int64]
WINDOW = 8 << 20
THREADS = 16


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """The records of one object, in file order: payload offsets and lengths in bytes, shape [records] each.

    `checksum` is the CRC32C over all lengths and all stored payload checksums: it changes with any record,
    and stays when the object is copied elsewhere.
    """

    object: StoredObject
    offsets: Int64s
    lengths: Int64s
    checksum: int

    @property
    def count(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True, eq=False)
class DatasetIndex:
    """All shards in the order of their names; record numbers count through them from 0 to `count` - 1."""

    shards: tuple[ShardIndex, ...]

    @functools.cached_property
    def starts(self) -> Int64s:
        """The number of each shard's first record, and the number of all records; shape [shards + 1]."""
        return np.cumsum([0, *(shard.count for shard in self.shards)], dtype=np.int64)

    @property
    def count(self) -> int:
        return int(self.starts[-1])

    @functools.cached_property
    def fingerprint(self) -> str:
        """64 hex digits that change when a shard is changed, added, removed or renamed.

        They do not depend on where the data set lies: names count from the shards' common folder.
        """
        names = [shard.object.uri.split("/") for shard in self.shards]
        common = _common_folder([name[:-1] for name in names])
        digest = hashlib.sha256()
        for name, shard in zip(names, self.shards, strict=True):
            relative = "/".join(name[common:])
            digest.update(f"{relative}\0{shard.object.size}\0{shard.count}\0{shard.checksum}\n".encode())
        return digest.hexdigest()

    def locate(self, record_numbers: Int64s) -> tuple[Int64s, Int64s]:
        """Shard numbers and rows within the shard of shape [n], for record numbers of shape [n].

        Raises IndexError for a number outside 0 … count - 1.
        """
        numbers = np.asarray(record_numbers, np.int64)
        if numbers.size and (numbers.min() < 0 or numbers.max() >= self.count):
            raise IndexError(f"record numbers must lie in 0 … {self.count - 1}")
        shards = np.searchsorted(self.starts, numbers, side="right") - 1
        return shards.astype(np.int64), numbers - self.starts[shards]


def build(patterns: Sequence[str]) -> DatasetIndex:
    """The index of every object that one of the patterns matches, each once, in the order of the URIs.

    A remote shard's sidecar is used where there is one, else the shard is scanned. Raises InvalidData when a
    pattern matches nothing, a file is no TFRecord file, or there is no record at all.
    """
    from mptraining_records import sidecar

    objects = find(patterns)
    with ThreadPoolExecutor(min(THREADS, len(objects)), thread_name_prefix="index") as pool:
        shards = tuple(pool.map(sidecar.load_or_scan, objects))
    if not any(shard.count for shard in shards):
        raise InvalidData(" ".join(patterns), f"{len(shards)} empty files, no record in them")
    return DatasetIndex(shards)


def find(patterns: Sequence[str]) -> list[StoredObject]:
    """The shards that the patterns match, each once, sorted by URI; manifests beside them are left out."""
    found = {each.uri: each for pattern in patterns for each in storage.glob(pattern)}
    objects = [found[uri] for uri in sorted(found) if not uri.endswith("manifest.json")]
    if not objects:
        raise InvalidData(" ".join(patterns), "no TFRecord file found")
    return objects


def scan(object: StoredObject) -> ShardIndex:
    """Reads the frames of one object and checks every length's CRC (payloads are checked when they are read).

    A local file is mapped and only the frames are touched; a remote one is streamed in 8 MiB ranges, which
    leave out what a longer record fills. Raises InvalidData at the first damaged frame.
    """
    shard, bad = walk(object)
    if bad is not None:
        raise bad.problem()
    return shard


def walk(object: StoredObject) -> tuple[ShardIndex, BadRecord | None]:
    """As `scan`, but returns the records before the first damaged frame, and that damage."""
    if object.size == 0:
        return _shard(object, [], []), None
    if storage.is_remote(object.uri):
        return _walk(object, lambda at: storage.read_range(object.uri, at, WINDOW, version=object.version))
    with storage.mapped(object) as content:
        return _walk(object, lambda _: content, whole=True)


def _walk(
    object: StoredObject, fetch: Callable[[int], bytes | mmap.mmap], *, whole: bool = False
) -> tuple[ShardIndex, BadRecord | None]:
    """Follows the frames through windows of the object: `fetch(at)` gives the bytes from `at` onwards."""
    size = object.size
    content, start = fetch(0), 0
    end = size if whole else len(content)
    framing.refuse_foreign(object.uri, content[: framing.HEADER])
    lengths: list[int] = []
    checksums: list[int] = []
    at = 0
    unpack_header, unpack_footer = framing.header_format.unpack_from, framing.footer_format.unpack_from
    crc, mask = google_crc32c.value, framing.masked_crc_of
    while at < size:
        if at + framing.HEADER > size:
            return _shard(object, lengths, checksums), _bad(object, lengths, at, framing.TRUNCATED)
        if at + framing.HEADER > end:
            content, start = fetch(at), at
            end = start + len(content)
        length, stored = unpack_header(content, at - start)
        if stored != mask(crc(content[at - start : at - start + 8])):
            return _shard(object, lengths, checksums), _bad(object, lengths, at, framing.BAD_LENGTH)
        footer = at + framing.HEADER + length
        if footer + framing.FOOTER > size:
            return _shard(object, lengths, checksums), _bad(object, lengths, at, framing.TRUNCATED)
        if footer + framing.FOOTER > end:
            content, start = fetch(footer), footer
            end = start + len(content)
        lengths.append(length)
        checksums.append(unpack_footer(content, footer - start)[0])
        at = footer + framing.FOOTER
    return _shard(object, lengths, checksums), None


def _bad(object: StoredObject, lengths: list[int], at: int, cause: str) -> BadRecord:
    return BadRecord(object.uri, len(lengths), at, cause)


def _shard(object: StoredObject, lengths: list[int], checksums: list[int]) -> ShardIndex:
    sizes = np.array(lengths, np.int64)
    return from_lengths(object, sizes, content_checksum(sizes, np.array(checksums, np.uint32)))


def from_lengths(object: StoredObject, lengths: Int64s, checksum: int) -> ShardIndex:
    """The index of an object whose payload lengths are known: frames follow each other without gaps."""
    ends = np.cumsum(lengths + framing.OVERHEAD)
    return ShardIndex(object, ends - lengths - framing.FOOTER, lengths, checksum)


def content_checksum(lengths: Int64s, payload_checksums: NDArray[np.uint32]) -> int:
    """CRC32C over the lengths and the stored payload checksums, both in little-endian order."""
    crc: int = google_crc32c.value(lengths.astype("<i8").tobytes())
    return int(google_crc32c.extend(crc, payload_checksums.astype("<u4").tobytes()))


def _common_folder(folders: list[list[str]]) -> int:
    """How many leading path elements all folders share."""
    if not folders:
        return 0
    first, last = min(folders), max(folders)
    shared = 0
    while shared < min(len(first), len(last)) and first[shared] == last[shared]:
        shared += 1
    return shared

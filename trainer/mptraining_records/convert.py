"""Turns a folder of images, a CSV, a Parquet or an .npz file into shards of TFRecords with a manifest."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from mptraining_api.problems import InvalidData
from mptraining_records import example, manifest, sidecar, sources, storage
from mptraining_records.hashing import hashed, key
from mptraining_records.manifest import Manifest
from mptraining_records.shards import ShardWriter

SHARD_BYTES = 128 << 20
Progress = Callable[[int, int | None], None]


def convert(
    source: str,
    destination: str,
    *,
    name: str = "train",
    shard_bytes: int = SHARD_BYTES,
    label: str | None = None,
    validation_fraction: float = 0.0,
    seed: int = 0,
    image_size: tuple[int, int] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    notice: Callable[[str], None] | None = None,
) -> list[Manifest]:
    """Writes `name`-00000-of-….tfrecord and `name`-manifest.json into the folder `destination`, local or gs://.

    With a `validation_fraction` in (0, 1), each row goes to the split `validation` with that probability,
    decided by a hash of its number and `seed` alone. `image_size` is (height, width). `progress` gets the
    rows done and their number; `notice` lines for the user. Manifests are written last, so that a folder
    with one is complete; a folder that already has this split is refused unless `overwrite`.

    Raises InvalidData for a source that cannot be converted as asked.
    """
    if not 0 <= validation_fraction < 1:
        raise InvalidData("validation fraction", str(validation_fraction), expected="0 or more, less than 1")
    names = [name, "validation"] if validation_fraction else [name]
    if len(set(names)) < len(names):
        raise InvalidData("name", repr(name), expected="another name than that of the validation split")
    present = {split: _present(destination, split) for split in names}
    if not overwrite:
        for uris in present.values():
            for uri in uris[:1]:
                raise InvalidData(uri, "exists already", next_step="Choose another folder or --overwrite")
    with ExitStack() as stack:
        opened = stack.enter_context(sources.opened(source, label=label, image_size=image_size))
        for line in opened.notices:
            if notice:
                notice(line)
        folder = stack.enter_context(_temporary_folder(destination))
        writers = [ShardWriter(folder, split, shard_bytes) for split in names]
        for writer in writers:
            stack.callback(writer.close)
        _write(opened, writers, validation_fraction=validation_fraction, seed=seed, progress=progress)
        for writer, split in zip(writers, names, strict=True):
            if not writer.records:
                raise InvalidData(source, f"no row for the split {split!r}", next_step="It needs more rows")
        _remove([uri for uris in present.values() for uri in uris])
        manifests = [
            Manifest(
                name=split,
                features=opened.features(),
                label=opened.label,
                classes=opened.classes,
                records=writer.records,
                files=writer.publish(destination),
            )
            for writer, split in zip(writers, names, strict=True)
        ]
    for each in manifests:
        manifest.save(destination, each)
    return manifests


def _write(
    source: sources.Source,
    writers: list[ShardWriter],
    *,
    validation_fraction: float,
    seed: int,
    progress: Progress | None,
) -> None:
    split_key = key(seed)
    for number, row in enumerate(source.rows()):
        drawn = int(hashed(split_key, np.array([number], np.uint64))[0]) if len(writers) > 1 else 0
        chosen = 1 if len(writers) > 1 and drawn < validation_fraction * 2**64 else 0
        writers[chosen].write(example.encode(row))
        if progress:
            progress(number + 1, source.count)


def _present(destination: str, split: str) -> list[str]:
    """What lies at the destination of this split already, its manifest first."""
    manifests = storage.matching(manifest.uri_of(destination, split))
    shards = storage.matching(storage.join(destination, f"{split}-?????-of-?????.tfrecord"))
    return [each.uri for each in (*manifests, *shards)]


def _remove(uris: list[str]) -> None:
    for uri in uris:
        storage.delete(uri)
        if storage.is_remote(uri):
            storage.delete(sidecar.uri_of(uri))


@contextmanager
def _temporary_folder(destination: str) -> Iterator[Path]:
    """A folder that goes away; beside the shards when they are local, so that there is room for them."""
    parent = None
    if not storage.is_remote(destination):
        parent = storage.local_folder(destination)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".unfinished-") as folder:
        yield Path(folder)

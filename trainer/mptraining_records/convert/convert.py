"""Conversion of an image folder, a CSV, Parquet or .npz file to TFRecord shards with a manifest."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from mptraining_api.problems import InvalidData
from mptraining_records.convert import shards, sources
from mptraining_records.convert.shards import ShardFolder, ShardUpload, ShardWriter
from mptraining_records.reading.order import key, splitmix64
from mptraining_records.storage import storage
from mptraining_records.tfrecord import example, manifest
from mptraining_records.tfrecord.manifest import Manifest

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
    """Write `name`-00000-of-….tfrecord and `name`-manifest.json into the folder `destination`, local or gs://.

    With a `validation_fraction` in (0, 1), each row goes to the split `validation` with that probability, decided by a
    hash of its row number and `seed`. `image_size` is (height, width). `progress` gets the number of rows done and of
    all rows; `notice` gets lines for the user. Manifests are written last, so that a folder with one is complete.

    Shards are uploaded to a bucket while later ones are written. If the conversion fails, uploaded shards stay in
    `.unfinished/`: the same conversion, started again, resumes and uploads only the missing ones.

    Raises InvalidData for a source that cannot be converted with these arguments, and for a folder that already has
    the split, unless `overwrite`.
    """
    if not 0 <= validation_fraction < 1:
        raise InvalidData("validation fraction", str(validation_fraction), expected="0 or more, less than 1")
    names = [name, "validation"] if validation_fraction else [name]
    if len(set(names)) < len(names):
        raise InvalidData("name", repr(name), expected="another name than that of the validation split")
    arguments = {
        "source": source,
        "splits": names,
        "shardBytes": shard_bytes,
        "label": label,
        "validationFraction": validation_fraction,
        "seed": seed,
        "imageSize": image_size,
        "overwrite": overwrite,
    }
    if not overwrite:
        _refuse_present(destination, names, arguments)
    with ExitStack() as stack:
        opened = stack.enter_context(sources.open_source(source, label=label, image_size=image_size))
        _report(opened.notices, notice)
        folder = stack.enter_context(_temporary_folder(destination))
        outputs = [_output(destination, split, arguments) for split in names]
        for output in outputs:
            stack.enter_context(output)
        writers = [
            ShardWriter(folder, split, shard_bytes, output.send) for split, output in zip(names, outputs, strict=True)
        ]
        for writer in writers:
            stack.callback(writer.close)
        _write(opened, writers, validation_fraction=validation_fraction, seed=seed, progress=progress)
        for writer, split in zip(writers, names, strict=True):
            if not writer.records:
                raise InvalidData(source, f"no row for the split {split!r}", next_step="It needs more rows")
            writer.finish()
        # All new shards must be stored before the old manifests and shards are deleted.
        for output in outputs:
            output.wait()
        for split in names:
            storage.delete(manifest.uri_of(destination, split))
        manifests = [
            Manifest(
                name=split,
                features=opened.features(),
                label=opened.label,
                classes=opened.classes,
                records=writer.records,
                files=output.publish(writer.shards),
            )
            for writer, output, split in zip(writers, outputs, names, strict=True)
        ]
        for each in manifests:
            manifest.save(destination, each)
        for output in outputs:
            output.delete_marker()
    return manifests


def _report(lines: Iterable[str], notice: Callable[[str], None] | None) -> None:
    for line in lines:
        if notice:
            notice(line)


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
        drawn = int(splitmix64(split_key, np.array([number], np.uint64))[0]) if len(writers) > 1 else 0
        chosen = 1 if len(writers) > 1 and drawn < validation_fraction * 2**64 else 0
        writers[chosen].write(example.encode(row))
        if progress:
            progress(number + 1, source.count)


def _refuse_present(destination: str, splits: list[str], arguments: Mapping[str, object]) -> None:
    """Raise InvalidData if a split exists, unless it is an unfinished one of this conversion."""
    for split in splits:
        present = storage.glob_or_empty(manifest.uri_of(destination, split)) + shards.list_published(destination, split)
        unfinished = storage.is_remote(destination) and shards.is_resumable(destination, split, arguments)
        if present and not unfinished:
            raise InvalidData(present[0].uri, "exists already", next_step="Choose another folder or --overwrite")


def _output(destination: str, split: str, arguments: Mapping[str, object]) -> ShardFolder | ShardUpload:
    if storage.is_remote(destination):
        return ShardUpload(destination, split, arguments)
    return ShardFolder(destination, split)


@contextmanager
def _temporary_folder(destination: str) -> Iterator[Path]:
    """Yield a temporary folder; for local shards, on the disk of their destination, where they are then renamed."""
    parent = None
    if not storage.is_remote(destination):
        parent = storage.local_folder(destination)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".unfinished-") as folder:
        yield Path(folder)

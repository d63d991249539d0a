"""Conversion of images, tables, arrays, text and TensorFlow Datasets to TFRecord shards with a manifest."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mptraining_api.problems import InvalidData
from mptraining_records.convert import shards, sources, tfds
from mptraining_records.convert.permutation import Progress, permuted_records
from mptraining_records.convert.preview import preview as preview_lines
from mptraining_records.convert.request import FILES, Request
from mptraining_records.convert.shards import SplitWriter
from mptraining_records.convert.split import choose, summarize
from mptraining_records.convert.table import Table
from mptraining_records.index import dataset_index
from mptraining_records.tfrecord import manifest
from mptraining_records.tfrecord.manifest import File, Manifest
from mptraining_storage import storage


def _ignore(*_: object) -> None: ...


def convert(
    source: str | None,
    destination: str,
    *,
    dry_run: bool = False,
    preview: Callable[[str], object] | None = None,
    progress: Progress = _ignore,
    notice: Callable[[str], object] = _ignore,
    **options: Any,
) -> list[Manifest]:
    """Write `name`-00000-of-….tfrecord and `name`-manifest.json into the folder `destination`, local or gs://.

    `options` are the other fields of `Request`. A prepared folder of TensorFlow Datasets is its own
    destination: it gets the manifest, in a bucket the index too, and its shards stay as they are.

    `preview` gets lines about the first rows before anything is written; `dry_run` stops there and returns no
    manifest. `progress` gets the work done and all of it; `notice` gets lines for the user. Manifests are written
    last, so that a folder with one is complete.

    Shards are uploaded to a bucket while later ones are written. If the conversion fails, uploaded shards stay in
    `.unfinished/`: the same conversion, started again, resumes and uploads only the missing ones.

    Raises InvalidData for a source that cannot be converted with these options, and for a folder that already has
    the split, unless `overwrite`.
    """
    request = Request(source, destination, notice, **options)
    request.check()
    if not request.overwrite:
        _refuse_present(request)
    if source is not None and request.suffix not in FILES and tfds.is_prepared(source):
        described = tfds.describe(source, request)
        if preview:
            preview(f"{described.records:,} records; label: {described.label or 'none'}")
        if dry_run:
            return []
        dataset_index.publish([tfds.pattern(source, name=request.name)])
        manifest.save(destination, described)
        return [described]
    with warnings.catch_warnings(), sources.open_source(request) as opened:
        # About metadata, and about images that are large but not refused.
        warnings.filterwarnings("ignore", module="PIL")
        held_out = choose(opened, request)
        if preview:
            for line in preview_lines(opened, request.permutation_seed):
                preview(line)
        if dry_run:
            return []
        return _write(opened, held_out, request, progress)


def _write(source: Table, held_out: NDArray[np.bool_], request: Request, progress: Progress) -> list[Manifest]:
    """Write all splits, publish their shards, then their manifests; `held_out` rows go to the second split."""
    destination, seed = request.destination, request.permutation_seed
    with ExitStack() as stack:
        folder = stack.enter_context(_temporary_folder(destination))
        writers = [stack.enter_context(SplitWriter(folder, request, name)) for name in request.split_names]
        written: list[list[int]] = [[] for _ in writers]
        for number, record in permuted_records(source, seed, folder, progress):
            split = int(held_out[number])
            writers[split].write(record)
            written[split].append(number)
        source.report()
        for numbers, writer in zip(written, writers, strict=True):
            if not numbers:
                raise InvalidData(destination, f"no row for the split {writer.split!r}", next_step="It needs more rows")
        # All new shards must be stored before the old manifests and shards are deleted.
        for writer in writers:
            writer.finish()
        for writer in writers:
            storage.delete(manifest.uri_of(destination, writer.split))
        manifests = [
            _manifest(source, seed, numbers, writer.split, writer.publish())
            for writer, numbers in zip(writers, written, strict=True)
        ]
        for made in manifests:
            manifest.save(destination, made)
        for writer in writers:
            writer.delete_marker()
    return manifests


def _manifest(source: Table, seed: int | None, numbers: Sequence[int], name: str, files: tuple[File, ...]) -> Manifest:
    """Describe the split `name`, whose records are these rows, in their order."""
    labels = source.labels()
    labels = None if labels is None else labels[list(numbers)]
    return Manifest(
        name=name,
        features=source.features(),
        label=source.label,
        classes=source.classes,
        records=sum(file.records for file in files),
        files=files,
        permutation_seed=seed,
        **summarize(labels, len(source.classes) if source.classes else None),
    )


def _refuse_present(request: Request) -> None:
    """Raise InvalidData if a split exists, unless it is an unfinished one of this conversion."""
    destination = request.destination
    for split in request.split_names:
        present = storage.glob_or_empty(manifest.uri_of(destination, split)) + shards.list_published(destination, split)
        if present and not (storage.is_remote(destination) and shards.is_resumable(request, split)):
            raise InvalidData(present[0].uri, "exists already", next_step="Choose another folder or --overwrite")


@contextmanager
def _temporary_folder(destination: str) -> Iterator[Path]:
    """Yield a temporary folder; for local shards, on the disk of their destination, where they are then renamed."""
    is_remote = storage.is_remote(destination)
    parent = None if is_remote else storage.local_folder(destination)
    try:
        with tempfile.TemporaryDirectory(dir=parent, prefix=".unfinished-") as folder:
            yield Path(folder)
    finally:
        # A failed conversion leaves nothing; a folder that has files cannot be removed this way.
        with suppress(OSError):
            if parent is not None:
                parent.rmdir()

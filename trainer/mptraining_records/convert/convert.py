"""Conversion of images, tables, arrays, text and TensorFlow Datasets to TFRecord shards with a manifest."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mptraining_api.problems import InvalidData
from mptraining_records.convert import shards, sources
from mptraining_records.convert.permutation import encoded_rows
from mptraining_records.convert.preview import preview as preview_lines
from mptraining_records.convert.request import LabelAs, Missing, Request
from mptraining_records.convert.shards import ShardOutput, ShardWriter
from mptraining_records.convert.split import LabelCollector, choose_validation, summarize, why_not_stratified
from mptraining_records.reading.order import Int64s
from mptraining_records.tfrecord import manifest
from mptraining_records.tfrecord.manifest import File, Manifest
from mptraining_storage import storage

SHARD_BYTES = 128 << 20
VALIDATION = "validation"
Progress = Callable[[int, int | None], None]
BadImages = Literal["Fail", "Skip"]


def convert(
    source: str | None,
    destination: str,
    *,
    name: str = "train",
    shard_bytes: int = SHARD_BYTES,
    label: str | None = None,
    label_as: LabelAs = "Auto",
    missing: Missing = "Error",
    columns: Sequence[str] | None = None,
    images: str | None = None,
    path_column: str | None = None,
    pairs: Mapping[str, str] | None = None,
    bad_images: BadImages = "Fail",
    validation_fraction: float = 0.0,
    group: str | None = None,
    seed: int = 0,
    keep_order: bool = False,
    image_size: tuple[int, int] | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    preview: Callable[[str], None] | None = None,
    progress: Progress | None = None,
    notice: Callable[[str], None] | None = None,
) -> list[Manifest]:
    """Write `name`-00000-of-….tfrecord and `name`-manifest.json into the folder `destination`, local or gs://.

    `source` is None for `pairs`: folders of images by feature name, the label last. `images` is the folder of the
    files that `path_column` of a table names. `Request` describes how a source is read.

    Rows are permuted by `seed` unless `keep_order`. With a `validation_fraction` in (0, 1), that share of the rows
    goes to the split `validation`, also by `seed`: of every class that has enough rows for both splits, of all rows
    where the label is no class, or of the values of the column `group`.
    `image_size` is (height, width).

    `preview` gets lines about the first rows before anything is written; `dry_run` stops there and returns no
    manifest. `progress` gets the work done and all of it; `notice` gets lines for the user. Manifests are written
    last, so that a folder with one is complete.

    Shards are uploaded to a bucket while later ones are written. If the conversion fails, uploaded shards stay in
    `.unfinished/`: the same conversion, started again, resumes and uploads only the missing ones.

    Raises InvalidData for a source that cannot be converted with these arguments, and for a folder that already has
    the split, unless `overwrite`.
    """
    names = _split_names(name, validation_fraction, group)
    request = Request(
        source=source,
        destination=destination,
        notice=notice or _ignore,
        split=name,
        label=label,
        label_as=label_as,
        missing=missing,
        columns=None if columns is None else tuple(columns),
        images=images,
        path_column=path_column,
        pairs=dict(pairs or {}),
        group=group,
        image_size=image_size,
        skip_bad_images=bad_images == "Skip",
    )
    permutation_seed = None if keep_order else seed
    arguments = {
        **request.identity(),
        "splits": names,
        "shardBytes": shard_bytes,
        "validationFraction": validation_fraction,
        "seed": seed,
        "keepOrder": keep_order,
        "overwrite": overwrite,
    }
    if not overwrite:
        _refuse_present(destination, names, arguments)
    with warnings.catch_warnings(), sources.open_source(request) as opened:
        # About metadata, and about images that are large but not refused.
        warnings.filterwarnings("ignore", module="PIL")
        # The split needs the labels of all rows before the first is written; a manifest does not.
        labels = opened.labels() if validation_fraction else None
        held_out = _held_out(opened, labels, request, validation_fraction, seed)
        for line in preview_lines(opened, permutation_seed) if preview else ():
            (preview or _ignore)(line)
        if dry_run:
            return []
        return _write(
            opened, held_out, permutation_seed, destination, names, shard_bytes, arguments, progress or _ignore
        )


def _ignore(*_: object) -> None: ...


def _split_names(name: str, validation_fraction: float, group: str | None) -> list[str]:
    if not 0 <= validation_fraction < 1:
        raise InvalidData("validation fraction", str(validation_fraction), expected="0 or more, less than 1")
    if group is not None and not validation_fraction:
        raise InvalidData("--group", repr(group), expected="--validation-fraction besides; groups stay in one split")
    if validation_fraction and name == VALIDATION:
        raise InvalidData("name", repr(name), expected="another name than that of the validation split")
    return [name, VALIDATION] if validation_fraction else [name]


def _write(
    source: sources.Source,
    held_out: NDArray[np.bool_],
    permutation_seed: int | None,
    destination: str,
    names: list[str],
    shard_bytes: int,
    arguments: Mapping[str, object],
    progress: Callable[[int, int], None],
) -> list[Manifest]:
    """Write all splits, publish their shards, then their manifests; `held_out` rows go to the second split."""
    with ExitStack() as stack:
        folder = stack.enter_context(_temporary_folder(destination))
        outputs = [ShardOutput(destination, split, arguments) for split in names]
        for output in outputs:
            stack.enter_context(output)
        writers = [
            ShardWriter(folder, split, shard_bytes, output.send) for split, output in zip(names, outputs, strict=True)
        ]
        for writer in writers:
            stack.callback(writer.close)
        written: list[list[int]] = [[] for _ in writers]
        labels = LabelCollector(source)
        for number, record in encoded_rows(source, permutation_seed, folder, progress, labels.add):
            split = int(held_out[number])
            writers[split].write(record)
            written[split].append(number)
        for writer, name in zip(writers, names, strict=True):
            if not writer.records:
                raise InvalidData(destination, f"no row for the split {name!r}", next_step="It needs more rows")
            writer.finish()
        # All new shards must be stored before the old manifests and shards are deleted.
        for output in outputs:
            output.wait()
        for name in names:
            storage.delete(manifest.uri_of(destination, name))
        manifests = [
            _manifest(source, permutation_seed, labels.of(numbers), name, output.publish(writer.shards))
            for name, writer, output, numbers in zip(names, writers, outputs, written, strict=True)
        ]
        for each in manifests:
            manifest.save(destination, each)
        for output in outputs:
            output.delete_marker()
    return manifests


def _manifest(
    source: sources.Source, permutation_seed: int | None, labels: Int64s | None, name: str, files: tuple[File, ...]
) -> Manifest:
    """Describe the split `name`, whose records have these labels, in their order."""
    return Manifest(
        name=name,
        features=source.features(),
        label=source.label,
        classes=source.classes,
        records=sum(file.records for file in files),
        files=files,
        permutation_seed=permutation_seed,
        **summarize(labels, len(source.classes) if source.classes else None),
    )


def _held_out(
    source: sources.Source, labels: Int64s | None, request: Request, fraction: float, seed: int
) -> NDArray[np.bool_]:
    """Return which rows go to the validation split, and report how they were chosen."""
    if not fraction:
        return np.zeros(source.count, bool)
    groups = source.groups() if request.group is not None else None
    unstratified = None
    if labels is not None:
        is_number = request.label_as == "Numbers"
        why = None if is_number else why_not_stratified(labels, fraction, source.classes)
        unstratified = "it is stored as numbers" if is_number else why
        # A group may be all there is of a named class, which is reported; a number is no class.
        if unstratified and (groups is None or source.classes is None):
            labels = None
    chosen = choose_validation(source.count, fraction, seed, labels=labels, groups=groups)
    if groups is not None:
        request.notice(f"{VALIDATION}: {chosen.sum():,} of {source.count:,} rows, whole groups of {request.group!r}")
        if labels is not None:
            missing = sorted(set(labels[~chosen].tolist()) ^ set(labels[chosen].tolist()))
            if missing:
                name = source.classes[missing[0]] if source.classes else missing[0]
                request.notice(f"the class {name!r} has rows in one of the splits only; another --seed may help")
    elif labels is not None:
        request.notice(
            f"{VALIDATION}: {chosen.sum():,} of {source.count:,} rows, the same share of each {source.label!r}"
        )
    elif unstratified:
        counts = f"{chosen.sum():,} of {source.count:,} rows"
        request.notice(f"{VALIDATION}: {counts}, without regard to {source.label!r}: {unstratified}")
    return chosen


def _refuse_present(destination: str, splits: list[str], arguments: Mapping[str, object]) -> None:
    """Raise InvalidData if a split exists, unless it is an unfinished one of this conversion."""
    for split in splits:
        present = storage.glob_or_empty(manifest.uri_of(destination, split)) + shards.list_published(destination, split)
        unfinished = storage.is_remote(destination) and shards.is_resumable(destination, split, arguments)
        if present and not unfinished:
            raise InvalidData(present[0].uri, "exists already", next_step="Choose another folder or --overwrite")


@contextmanager
def _temporary_folder(destination: str) -> Iterator[Path]:
    """Yield a temporary folder; for local shards, on the disk of their destination, where they are then renamed."""
    if storage.is_remote(destination):
        with tempfile.TemporaryDirectory(prefix=".unfinished-") as folder:
            yield Path(folder)
        return
    parent = storage.local_folder(destination)
    try:
        with tempfile.TemporaryDirectory(dir=parent, prefix=".unfinished-") as folder:
            yield Path(folder)
    finally:
        # A failed conversion leaves nothing; a folder that has files cannot be removed this way.
        with suppress(OSError):
            parent.rmdir()

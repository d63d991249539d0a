"""Commands `mptj records convert | index | verify`, with progress and storage retries on standard error."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Self, cast

import typer

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

    from mptraining_records.tfrecord.framing import BadRecord
    from mptraining_records.tfrecord.manifest import Manifest

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="TFRecords: convert, index and verify.")

PLAIN_SECONDS = 10.0
# More classes than these are not listed on one line.
_CLASSES = 20
# The largest class has this many times the records of the smallest before class weights are proposed.
_UNEVEN = 2


class LabelAs(StrEnum):
    AUTO = "Auto"
    CLASSES = "Classes"
    NUMBERS = "Numbers"


class Missing(StrEnum):
    ERROR = "Error"
    DROP = "Drop"


class BadImages(StrEnum):
    FAIL = "Fail"
    SKIP = "Skip"


@app.command(short_help="Write images, tables, text or arrays as TFRecords.")
def convert(
    places: Annotated[
        list[str],
        typer.Argument(
            help="SOURCE: folder of images, of .txt files or of TensorFlow Datasets; .csv, .parquet, .npz or .txt. "
            "DEST: folder for the shards, local or gs://. With --pairs DEST alone.",
            metavar="[SOURCE] DEST",
        ),
    ],
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the split; the shards' names begin with it.")
    ] = "train",
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="Column with the label.")] = None,
    label_as: Annotated[
        LabelAs, typer.Option(help="Store an integer label as class numbers or as it is.")
    ] = LabelAs.AUTO,
    missing: Annotated[
        Missing, typer.Option(help="A row of a table without a value ends the conversion or is left out.")
    ] = Missing.ERROR,
    images: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder of the images that a column of SOURCE names.")
    ] = None,
    path_column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column with the names of the images.")
    ] = None,
    pairs: Annotated[
        tuple[str, str] | None,
        typer.Option(
            help="Two folders whose images belong together: input=DIR target=DIR.", metavar="NAME=DIR NAME=DIR"
        ),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="COLUMN,...", help="Columns to store besides the label, by commas.")
    ] = None,
    validation_fraction: Annotated[
        float, typer.Option(metavar="FRACTION", help="Share of rows for the split 'validation'.")
    ] = 0.0,
    group: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of which no value may be in both splits.")
    ] = None,
    image_size: Annotated[
        str | None, typer.Option(metavar="HEIGHTxWIDTH", help="Resize images to HEIGHTxWIDTH.")
    ] = None,
    bad_images: Annotated[BadImages, typer.Option(help="What a damaged or missing image does.")] = BadImages.FAIL,
    shard_bytes: Annotated[int, typer.Option(metavar="BYTES", help="Size of a shard in bytes.")] = 128 << 20,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the order and of the validation rows.")] = 0,
    keep_order: Annotated[bool, typer.Option("--keep-order", help="Do not permute the rows.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the first records and write nothing.")] = False,
) -> None:
    """Write SOURCE as TFRecords, with a manifest, to the folder DEST. The rows are permuted by --seed."""
    from mptraining_records.convert.convert import convert as run

    source, destination = _places(places, is_pairs=pairs is not None)
    height_and_width = parse_size(image_size)
    with _Meter("rows") as meter:
        manifests = run(
            source,
            destination,
            name=name,
            shard_bytes=shard_bytes,
            label=label,
            label_as=cast("Any", label_as.value),
            missing=cast("Any", missing.value),
            columns=None if columns is None else [each for each in columns.split(",") if each],
            images=images,
            path_column=path_column,
            pairs=_parse_pairs(pairs),
            bad_images=cast("Any", bad_images.value),
            validation_fraction=validation_fraction,
            group=group,
            seed=seed,
            keep_order=keep_order,
            image_size=height_and_width,
            overwrite=overwrite,
            dry_run=dry_run,
            preview=meter.line,
            progress=meter.at,
            notice=meter.say,
        )
    for each in manifests:
        _describe(each)
    if dry_run:
        typer.echo("nothing is written, for --dry-run")
        return
    # The shards of TensorFlow Datasets keep their names, which end with the split.
    is_named_first = manifests[0].files[0].name.startswith(f"{name}-")
    pattern = f"{destination.rstrip('/')}/{f'{name}-*.tfrecord' if is_named_first else f'*-{name}.tfrecord*'}"
    # A split with another name than `train` may be for validation, so its field in the job is not known.
    typer.echo(f"next: {f'data.train: [{pattern}]' if name == 'train' else f'{pattern} in data'} of a job file")


def _describe(made: Manifest) -> None:
    from mptraining.display.text import counted, size

    total = size(sum(file.bytes for file in made.files))
    order = "in the source's order" if made.permutation_seed is None else f"permuted by seed {made.permutation_seed}"
    records = f"{counted(made.records, 'record')} in {counted(len(made.files), 'file')}"
    typer.echo(f"{made.name}: {records}, {total}, {order}")
    if made.is_sorted_by_label:
        typer.echo(
            f"warning: {made.name} looks sorted by {made.label!r}; without --keep-order it is permuted", err=True
        )
    if made.class_counts and made.classes and made.name != "validation":
        shown = [f"{name} {count:,}" for name, count in zip(made.classes, made.class_counts, strict=True)][:_CLASSES]
        typer.echo(f"  classes: {', '.join(shown)}{', …' if len(made.classes) > _CLASSES else ''}")
        if max(made.class_counts) >= _UNEVEN * min(made.class_counts) and len(made.classes) <= _CLASSES:
            weights = ", ".join(f'"{number}": {weight:g}' for number, weight in (made.class_weight or {}).items())
            typer.echo(f"  classes of unequal size; a job may weight them: training.classWeight: {{{weights}}}")


def _places(places: list[str], *, is_pairs: bool) -> tuple[str | None, str]:
    """Return source and destination. Raises InvalidSpec for another number of places."""
    if len(places) != (1 if is_pairs else 2):
        from mptraining_api.problems import InvalidSpec

        raise InvalidSpec(
            "arguments",
            " ".join(places),
            expected="DEST alone, since --pairs names the sources" if is_pairs else "SOURCE and DEST",
        )
    return (None, places[0]) if is_pairs else (places[0], places[1])


def _parse_pairs(pairs: tuple[str, str] | None) -> dict[str, str]:
    """Parse `input=DIR`, twice. Raises InvalidSpec."""
    found = dict(each.partition("=")[::2] for each in pairs or ())
    if pairs and (len(found) < 2 or not all(name and folder for name, folder in found.items())):
        from mptraining_api.problems import InvalidSpec

        raise InvalidSpec("--pairs", " ".join(pairs), expected="two names and folders, such as input=DIR target=DIR")
    return found


@app.command(short_help="Write an index file next to every shard in a bucket.")
def index(
    patterns: Annotated[list[str], typer.Argument(help="gs:// URIs; wildcards allowed.", metavar="PATTERN...")],
    force: Annotated[bool, typer.Option("--force", help="Rewrite valid indexes too.")] = False,
    allow_damage: Annotated[bool, typer.Option("--allow-damage", help="Exit with 0 despite damage.")] = False,
) -> None:
    """Write an index file next to every shard, so that no job has to build it; list damaged frames.

    Payloads are not checked; `mptj records verify` checks them. Exit code 2 if there is damage.
    """
    from mptraining.display.text import counted, size
    from mptraining_records.index.dataset_index import publish

    with _Meter("bytes") as meter:
        report = publish(patterns, force=force, progress=meter.at)
    _list_damage(report.damaged)
    texts = {
        "written": "written",
        "kept": "there already",
        "local": "not needed (local files)",
        "compressed": "not possible (compressed files)",
    }
    counts = [f"{report.count(state):,} {text}" for state, text in texts.items() if report.count(state)]  # type: ignore[arg-type]
    typer.echo(f"indexes: {', '.join(counts)}")
    damaged = f"{len(report.damaged)} damaged" if report.damaged else "no damaged frame"
    files = counted(len(report.shards), "file")
    typer.echo(f"{counted(report.records, 'record')} in {files}, {size(report.bytes)}: {damaged}")
    if report.damaged and not allow_damage:
        raise typer.Exit(2)


@app.command(short_help="Read every record, and list the damaged ones.")
def verify(
    patterns: Annotated[list[str], typer.Argument(help="Paths or URIs; wildcards allowed.", metavar="PATTERN...")],
) -> None:
    """Read every record, list damaged ones and those without the features; exit code 2 if there are any."""
    from mptraining.display.text import counted, size
    from mptraining_records.index.verify import verify as run

    with _Meter("bytes") as meter:
        report = run(patterns, meter.at)
        if report.unchecked:
            meter.say(f"checksums only, the features are not known: {report.unchecked}")
    _list_damage(report.bad)
    damaged = f"{len(report.bad)} damaged" if report.bad else "all sound"
    records = f"{counted(report.records, 'record')} in {counted(report.files, 'file')}"
    typer.echo(f"{records}, {size(report.bytes)}: {damaged}")
    if report.bad:
        raise typer.Exit(2)


def _list_damage(damaged: Iterable[BadRecord]) -> None:
    for bad in damaged:
        typer.echo(f"{bad.uri}: record {bad.record} at byte {bad.offset}: {bad.cause}")


def parse_size(text: str | None) -> tuple[int, int] | None:
    """Parse `224x224` to (height, width). Raises InvalidSpec."""
    if text is None:
        return None
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        from mptraining_api.problems import InvalidSpec

        raise InvalidSpec("--image-size", repr(text), expected="HEIGHTxWIDTH, such as 224x224")
    return int(parts[0]), int(parts[1])


class _Meter:
    """Progress and remaining time on standard error: a bar on a terminal, else a line every PLAIN_SECONDS.

    Retries of storage requests are reported at most every PLAIN_SECONDS.
    """

    def __init__(self, unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._unit = unit
        self._clock = clock
        self._began = self._last = clock()
        self._retry_said, self._retries = -math.inf, 0
        self._bar: RichProgress | None = None
        self._shown: AbstractContextManager[object] = nullcontext()

    def __enter__(self) -> Self:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        from mptraining_storage import gcs_clients

        console = Console(stderr=True)
        if console.is_terminal:
            counted = (DownloadColumn(),) if self._unit == "bytes" else (MofNCompleteColumn(), self._unit)
            self._bar = Progress(BarColumn(), *counted, TimeRemainingColumn(), console=console, transient=True)
            self._bar.add_task(self._unit, total=None)
            self._shown = self._bar
        self._shown.__enter__()
        gcs_clients.endpoint().on_retry = self.retried
        return self

    def __exit__(self, *error: object) -> None:
        from mptraining_storage import gcs_clients

        gcs_clients.endpoint().on_retry = None
        self._shown.__exit__(None, None, None)

    def at(self, done: int, total: int | None) -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, total=total)
        elif self._clock() - self._last >= PLAIN_SECONDS:
            self._last = self._clock()
            typer.echo(self._line(done, total), err=True)

    def _line(self, done: int, total: int | None) -> str:
        from mptraining.display.text import duration, size

        shown = size if self._unit == "bytes" else "{:,}".format
        unit = "" if self._unit == "bytes" else f" {self._unit}"
        if total is None:
            return f"{shown(done)}{unit}"
        left = (self._last - self._began) / done * (total - done) if done else None
        return f"{shown(done)} of {shown(total)}{unit}" + (f", {duration(left)} left" if left is not None else "")

    def retried(self, line: str) -> None:
        """Report one retry of a request; called from any thread."""
        now = self._clock()
        if now - self._retry_said < PLAIN_SECONDS:
            self._retries += 1
            return
        more = f" ({self._retries:,} new tries since the last line)" if self._retries else ""
        self._retry_said, self._retries = now, 0
        self.say(line + more)

    def say(self, line: str) -> None:
        self.line(f"note: {line}")

    def line(self, line: str) -> None:
        """Print a line above the bar."""
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            typer.echo(line, err=True)

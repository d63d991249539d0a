"""Commands `mptj records convert | index | verify`, with progress and storage retries on standard error."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Self

import click
from cloup import argument, option

from mptraining.cli import options
from mptraining.cli.output import note
from mptraining.cli.shell.verbs import Commands
from mptraining_api.problems import InvalidSpec

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

    from mptraining_records.tfrecord.framing import BadRecord
    from mptraining_records.tfrecord.manifest import Manifest

PLAIN_SECONDS = 10.0
# More classes than these are not listed on one line.
_CLASSES = 20
# The largest class has this many times the records of the smallest before class weights are proposed.
_UNEVEN = 2


@options.command()
@argument(
    "places",
    nargs=-1,
    required=True,
    metavar="[SOURCE] DEST",
    help="SOURCE: folder of images, of .txt files or of TensorFlow Datasets; .csv, .parquet, .npz or .txt. "
    "DEST: folder for the shards, local or gs://. With --pairs give DEST alone.",
)
@option("--name", metavar="NAME", default="train", help="Name of the split, and of its files; default: train.")
@option("--label", metavar="COLUMN", help="Column with the label.")
@option(
    "--label-as",
    type=options.choice("auto", "classes", "numbers"),
    default="auto",
    help="Store an integer label as the number of its class, or as it is.",
)
@option("--columns", metavar="COLUMN,...", help="Columns to store with the label, by commas.")
@option(
    "--missing",
    type=options.choice("error", "drop"),
    default="error",
    help="End at a row without a value, or leave it out.",
)
@option("--images", metavar="FOLDER", help="Folder of the images that a column of SOURCE names.")
@option("--path-column", metavar="COLUMN", help="Column with the names of the images.")
@option("--pairs", nargs=2, metavar="NAME=FOLDER NAME=FOLDER", help="Two folders of images that belong together.")
@option("--image-size", metavar="HEIGHTxWIDTH", help="Resize the images.")
@option(
    "--bad-images", type=options.choice("fail", "skip"), default="fail", help="End at a bad image, or leave it out."
)
@option("--validation-fraction", type=float, metavar="FRACTION", default=0.0, help="Share of rows for 'validation'.")
@option("--group", metavar="COLUMN", help="Rows with the same value stay in one split.")
@option("--shard-bytes", type=int, metavar="BYTES", default=128 << 20, help="Size of a file; default: 128 MiB.")
@option("--seed", type=int, metavar="N", default=0, help="Seed of the order and of the validation rows.")
@option("--keep-order", is_flag=True, help="Do not permute the rows.")
@options.overwrite
@option("--dry-run", is_flag=True, help="Show the first records, and write nothing.")
def convert(
    places: tuple[str, ...],
    name: str,
    columns: str | None,
    pairs: tuple[str, str] | None,
    image_size: str | None,
    label_as: str,
    missing: str,
    bad_images: str,
    dry_run: bool,
    **given: Any,
) -> None:
    """Write images, tables, text or arrays as TFRecords.

    The rows are permuted by --seed. A manifest describes them to jobs.
    """
    from mptraining_records.convert.convert import convert as run

    source, destination = _places(places, is_pairs=pairs is not None)
    height_and_width = parse_size(image_size)
    with _Meter("rows") as meter:
        manifests = run(
            source,
            destination,
            name=name,
            columns=None if columns is None else [column for column in columns.split(",") if column],
            pairs=_parse_pairs(pairs),
            image_size=height_and_width,
            label_as=_capitalized(label_as),
            missing=_capitalized(missing),
            bad_images=_capitalized(bad_images),
            dry_run=dry_run,
            preview=meter.line,
            progress=meter.at,
            notice=meter.say,
            **given,
        )
    for manifest in manifests:
        _describe(manifest)
    if dry_run:
        click.echo("nothing is written, for --dry-run")
        return
    # The shards of TensorFlow Datasets keep their names, which end with the split.
    is_named_first = manifests[0].files[0].name.startswith(f"{name}-")
    pattern = f"{destination.rstrip('/')}/{f'{name}-*.tfrecord' if is_named_first else f'*-{name}.tfrecord*'}"
    # A split with another name than `train` may be for validation, so its field in the job is not known.
    click.echo(f"next: {f'data.train: [{pattern}]' if name == 'train' else f'{pattern} in data'} of a job file")


def _capitalized(value: str) -> Any:
    """Return an option's value as the API of the records has it."""
    return value.capitalize()


def _describe(made: Manifest) -> None:
    from mptraining.display.text import counted, size

    total = size(sum(file.bytes for file in made.files))
    order = "in the source's order" if made.permutation_seed is None else f"permuted by seed {made.permutation_seed}"
    records = f"{counted(made.records, 'record')} in {counted(len(made.files), 'file')}"
    click.echo(f"{made.name}: {records}, {total}, {order}")
    if made.is_sorted_by_label:
        note(f"warning: {made.name} looks sorted by {made.label!r}; without --keep-order it is permuted")
    if made.class_counts and made.classes and made.name != "validation":
        shown = [f"{name} {count:,}" for name, count in zip(made.classes, made.class_counts, strict=True)][:_CLASSES]
        click.echo(f"  classes: {', '.join(shown)}{', …' if len(made.classes) > _CLASSES else ''}")
        if max(made.class_counts) >= _UNEVEN * min(made.class_counts) and len(made.classes) <= _CLASSES:
            weights = ", ".join(f'"{number}": {weight:g}' for number, weight in (made.class_weight or {}).items())
            click.echo(f"  classes of unequal size; a job may weight them: training.classWeight: {{{weights}}}")


def _places(places: tuple[str, ...], *, is_pairs: bool) -> tuple[str | None, str]:
    """Return source and destination. Raises InvalidSpec for another number of places."""
    if len(places) != (1 if is_pairs else 2):
        raise InvalidSpec(
            "arguments",
            " ".join(places),
            expected="DEST alone, since --pairs names the sources" if is_pairs else "SOURCE and DEST",
        )
    return (None, places[0]) if is_pairs else (places[0], places[1])


def _parse_pairs(pairs: tuple[str, str] | None) -> dict[str, str]:
    """Parse `input=DIR`, twice. Raises InvalidSpec."""
    folders = dict(pair.partition("=")[::2] for pair in pairs or ())
    if pairs and (len(folders) < 2 or not all(name and folder for name, folder in folders.items())):
        raise InvalidSpec("--pairs", " ".join(pairs), expected="two names and folders, such as input=DIR target=DIR")
    return folders


@options.command()
@argument("patterns", nargs=-1, required=True, metavar="PATTERN...", help="gs:// URIs; wildcards allowed.")
@option("--overwrite", is_flag=True, help="Write valid indexes again, too.")
@option("--allow-damage", is_flag=True, help="Exit with 0 despite damage.")
def index(patterns: tuple[str, ...], overwrite: bool, allow_damage: bool) -> int:
    """Write an index file for every shard in a bucket.

    Jobs then need not build it. Damaged frames are listed, with exit code 2; `mptj records verify` checks what is
    inside of them.
    """
    from mptraining.display.text import counted, size
    from mptraining_records.index.dataset_index import publish

    with _Meter("bytes") as meter:
        report = publish(patterns, force=overwrite, progress=meter.at)
    _list_damage(report.damaged)
    texts = {
        "written": "written",
        "kept": "there already",
        "local": "not needed (local files)",
        "compressed": "not possible (compressed files)",
    }
    counts = [f"{report.count(state):,} {text}" for state, text in texts.items() if report.count(state)]  # type: ignore[arg-type]
    click.echo(f"indexes: {', '.join(counts)}")
    damaged = f"{len(report.damaged)} damaged" if report.damaged else "no damaged frame"
    files = counted(len(report.shards), "file")
    click.echo(f"{counted(report.records, 'record')} in {files}, {size(report.bytes)}: {damaged}")
    return 2 if report.damaged and not allow_damage else 0


@options.command()
@argument("patterns", nargs=-1, required=True, metavar="PATTERN...", help="Paths or URIs; wildcards allowed.")
def verify(patterns: tuple[str, ...]) -> int:
    """Read every record, and list the damaged ones.

    Records that lack a feature are listed, too. The exit code is 2 if there are any.
    """
    from mptraining.display.text import counted, size
    from mptraining_records.index.verify import verify as run

    with _Meter("bytes") as meter:
        report = run(patterns, meter.at)
        if report.unchecked:
            meter.say(f"checksums only, the features are not known: {report.unchecked}")
    _list_damage(report.bad)
    damaged = f"{len(report.bad)} damaged" if report.bad else "all sound"
    records = f"{counted(report.records, 'record')} in {counted(report.files, 'file')}"
    click.echo(f"{records}, {size(report.bytes)}: {damaged}")
    return 2 if report.bad else 0


def _list_damage(damaged: Iterable[BadRecord]) -> None:
    for bad in damaged:
        click.echo(f"{bad.uri}: record {bad.record} at byte {bad.offset}: {bad.cause}")


def parse_size(text: str | None) -> tuple[int, int] | None:
    """Parse `224x224` to (height, width). Raises InvalidSpec."""
    if text is None:
        return None
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
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
        self._retry_reported, self._retries = -math.inf, 0
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
            note(self._line(done, total))

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
        if now - self._retry_reported < PLAIN_SECONDS:
            self._retries += 1
            return
        more = f" ({self._retries:,} new tries since the last line)" if self._retries else ""
        self._retry_reported, self._retries = now, 0
        self.say(line + more)

    def say(self, line: str) -> None:
        self.line(f"note: {line}")

    def line(self, line: str) -> None:
        """Print a line above the bar."""
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            note(line)


records = Commands(
    "records",
    commands=[convert, index, verify],
    context_settings=options.SETTINGS,
    no_args_is_help=True,
    help="Convert data to TFRecords; index and verify them.",
)

"""Comparison of runs as one value, as a table of text, and as HTML for a notebook."""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from mptraining.comparison.quantities import (
    Better,
    Value,
    batch_size,
    best,
    better_direction,
    input_bound_percent,
    labels,
    latest,
    metric_names,
    named_settings,
    other_settings,
    outcome,
    reported,
    setting_text,
    speed_ratio,
    step_seconds_direction,
)
from mptraining.display.text import counted, duration, number, readable, short_time, size
from mptraining.runs import Run, load_run
from mptraining_api.model import json_value
from mptraining_api.problems import ArgumentPlace, InvalidSpec, nearest

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

    from mptraining.display.curves import Panel

# The width of a comparison as text where nothing else decides it.
TEXT_WIDTH = 120
# Runs above which they are rows.
MOST_COLUMNS = 4
# Cells are broken beyond it.
_CELL_WIDTH = 34
_GAP = 2
_METRICS, _SORT = ArgumentPlace("metrics=…", "--metric"), ArgumentPlace("sort=…", "--sort")
_BEST, _DIFFERENT = "bold green", "bold"


class HasRun(Protocol):
    """A job: of a cluster (`mptraining.Job`), or a local one."""

    def run(self) -> Run: ...


Comparable = str | os.PathLike[str] | Run | HasRun


class Cell(NamedTuple):
    """A text of a table and its rich style."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity over all runs: raw `values`, formatted `texts`, and the indices of the `best` runs.

    `kind` is whether the runs had the value as a result or were given it as a setting. `better` is the direction in
    which the value improves.
    """

    key: str
    title: str
    values: tuple[Value, ...]
    texts: tuple[str, ...]
    best: tuple[int, ...] = ()
    kind: Literal["result", "setting"] = "result"
    better: Better = None

    @property
    def differs(self) -> bool:
        """Return whether the runs have different texts here, as far as these are known."""
        return len({text for text, value in zip(self.texts, self.values, strict=True) if value is not None}) > 1

    @property
    def complete(self) -> bool:
        """Return whether the value of every run is known."""
        return None not in self.values


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Compared runs. `labels` are unique names of the runs; `notes` qualify the numbers."""

    runs: tuple[Run, ...]
    labels: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    def to_document(self) -> dict[str, Any]:
        """Return a JSON document: `runs` (one mapping of raw values per run: seconds, bytes), `best` and `notes`."""
        runs = [
            {"folder": run.folder, "label": label, **{row.key: json_value(row.values[index]) for row in self.rows}}
            for index, (run, label) in enumerate(zip(self.runs, self.labels, strict=True))
        ]
        best_runs = {row.key: [self.labels[index] for index in row.best] for row in self.rows if row.best}
        return {"runs": runs, "best": best_runs, "notes": list(self.notes)}

    def sorted_by(self, column: str) -> Comparison:
        """Return the comparison with the runs in the order of a row, given by key or title.

        The best comes first, and the smallest where no direction is known; runs without a value come last. Raises
        InvalidSpec for an unknown row.
        """
        by = self._row(column)
        absent = [at for at, value in enumerate(by.values) if value is None or json_value(value) == "NaN"]
        present = [at for at in range(len(by.values)) if at not in absent]
        numeric = all(isinstance(by.values[at], int | float) for at in present)

        def sort_key(at: int) -> Any:
            return by.values[at] if numeric else str(by.values[at]).lower()

        order = sorted(present, key=sort_key, reverse=by.better == "higher")
        order += absent
        rows = tuple(
            replace(
                row,
                values=tuple(row.values[at] for at in order),
                texts=tuple(row.texts[at] for at in order),
                best=tuple(sorted(order.index(at) for at in row.best)),
            )
            for row in self.rows
        )
        runs, names = tuple(self.runs[at] for at in order), tuple(self.labels[at] for at in order)
        return Comparison(runs, names, rows, self.notes)

    @property
    def many(self) -> bool:
        """Return whether a table has a row per run, and not a column."""
        return len(self.runs) > MOST_COLUMNS

    @property
    def shared(self) -> tuple[Row, ...]:
        """Return the rows that tables leave to a line: settings that do not differ, and of many runs such results."""
        if len(self.runs) < 2:
            return ()
        return tuple(
            row for row in self.rows if not row.differs and (row.kind == "setting" or (self.many and row.complete))
        )

    @property
    def shown(self) -> tuple[Row, ...]:
        """Return the rows of a table; of many runs, which are read from the left, the settings come first."""
        rows = [row for row in self.rows if row not in self.shared]
        return tuple(sorted(rows, key=lambda row: row.kind == "result") if self.many else rows)

    @property
    def shared_text(self) -> str:
        """Return the shared rows as one line; empty if there are none."""
        values = [f"{row.title} {next(text for text in row.texts if text != '-')}" for row in self.shared]
        return f"the same in all: {', '.join(values)}" if values else ""

    def plot(self, *names: str) -> Any:
        """Plot metrics or gauges of all runs against the step; by default the metrics of the comparison.

        Returns what `History.plot` returns. Raises InvalidProgram like it, and KeyError for an unknown name.
        """
        from mptraining.display.plot import plot

        return plot(self._panels(names))

    def __repr__(self) -> str:
        return f"<Comparison of {counted(len(self.runs), 'run')}: {', '.join(self.labels)}>"

    def __str__(self) -> str:
        from rich.console import Console

        file = io.StringIO()
        Console(file=file, width=1000, color_system=None).print(table(self, TEXT_WIDTH))
        file.writelines(f"note: {note}\n" for note in self.notes)
        return file.getvalue().rstrip("\n")

    def cells(self, *, many: bool) -> list[tuple[Cell, ...]]:
        """Return the head and the rows of a table: a column for each run, or a row if `many`."""
        rows = [(Cell("run" if many else ""), *(Cell(label, "bold") for label in self.labels))]
        for row in self.shown:
            base = _DIFFERENT if row.kind == "setting" and row.differs else ""
            values = (Cell(text, _BEST if at in row.best else base) for at, text in enumerate(row.texts))
            rows.append((Cell(row.title, "bold" if many else base or "dim"), *values))
        return list(zip(*rows, strict=True)) if many else rows

    def _repr_html_(self) -> str:
        from mptraining.display.curves import Curve, swatch
        from mptraining.display.html import card, grid

        panels = self._panels()
        keys = " &nbsp; ".join(
            f'<span style="white-space:nowrap">{swatch(Curve(label, (), at))} {escape(label)}</span>'
            for at, label in enumerate(self.labels)
        )
        head, *rows = (
            ([cell.text for cell in row], frozenset(at for at, cell in enumerate(row) if cell.style == _BEST))
            for row in self.cells(many=self.many)
        )
        legend = f'<div style="font:12px sans-serif;line-height:1.7">{keys}</div>' if panels else ""
        title = f"Comparison of {counted(len(self.runs), 'run')}"
        lines = [*filter(None, [self.shared_text]), *self.notes]
        return card(title, table=grid(head[0], rows), lines=lines, panels=panels, shared_legend=legend)

    def _panels(self, names: Sequence[str] = ()) -> list[Panel]:
        """Return a chart of each name, with a curve of each run that recorded it."""
        from mptraining.display.curves import Curve, Panel

        recorded = dict.fromkeys(name for run in self.runs for name in run.history)
        unknown = [name for name in names if name not in recorded]
        if unknown:
            raise KeyError(f"{unknown[0]!r} was not recorded. Recorded: {', '.join(recorded) or 'nothing'}")
        panels = []
        for name in names or metric_names(self.runs):
            curves = (
                Curve(label, tuple(run.history.series(name)), at)
                for at, (run, label) in enumerate(zip(self.runs, self.labels, strict=True))
            )
            present = tuple(curve for curve in curves if curve.points)
            if present:
                panels.append(Panel(readable(name), present))
        return panels

    def _row(self, column: str) -> Row:
        key = column.strip().lower().replace(" ", "_")
        for row in self.rows:
            if key in (row.key.lower(), row.title.lower().replace(" ", "_")):
                return row
        keys = [row.key for row in self.rows]
        step = nearest(column, keys) or f"Columns: {', '.join(keys)}."
        raise InvalidSpec(_SORT, f"{column!r} is no column of this comparison", next_step=step)


def table(comparison: Comparison, width: int) -> Group:
    """Return the comparison as a rich renderable at most `width` characters wide, as far as its values allow.

    The best values are green and bold, settings in which the runs differ are bold; settings that all runs share are
    named once, below.
    """
    from rich.console import Group
    from rich.text import Text

    lines: list[Text] = []
    for block in _blocks(comparison, width):
        lines += [*([Text("")] if lines else []), *_drawn(block)]
    shared = textwrap.wrap(comparison.shared_text, width, break_long_words=False)
    return Group(*lines, *(Text(line, "dim") for line in shared))


# A column of a table: its cells, each broken into lines.
_Column = list[tuple[list[str], str]]


def _blocks(comparison: Comparison, width: int) -> list[list[_Column]]:
    """Return tables as lists of columns: a column for each run, or rows in as many blocks as the width needs."""
    if not comparison.many:
        columns = [_column(cells) for cells in zip(*comparison.cells(many=False), strict=True)]
        if _width(columns) <= width:
            return [columns]
    names, *columns = (_column(cells) for cells in zip(*comparison.cells(many=True), strict=True))
    blocks = [[names]]
    for column in columns:
        if len(blocks[-1]) > 1 and _width([*blocks[-1], column]) > width:
            blocks.append([names])
        blocks[-1].append(column)
    return blocks


def _column(cells: Sequence[Cell]) -> _Column:
    head, *values = cells
    broken = [(textwrap.wrap(cell.text, _CELL_WIDTH, break_on_hyphens=False) or [""], cell.style) for cell in values]
    # A heading may be as wide as the values below it, or else as its longest word.
    widths = (len(text) for text in (*head.text.split(), *(line for lines, _ in broken for line in lines)))
    title = textwrap.wrap(head.text, max(widths, default=1) or 1, break_on_hyphens=False) or [""]
    return [(title, head.style), *broken]


def _width(columns: Sequence[_Column]) -> int:
    return sum(_widest(column) for column in columns) + _GAP * (len(columns) - 1)


def _widest(column: _Column) -> int:
    return max(len(line) for lines, _ in column for line in lines)


def _drawn(columns: Sequence[_Column]) -> list[Text]:
    """Return the lines of a table: the first column to the left, the others to the right, headings at the bottom."""
    from rich.text import Text

    widths = [_widest(column) for column in columns]
    drawn: list[Text] = []
    for index, cells in enumerate(zip(*columns, strict=True)):
        height = max(len(lines) for lines, _ in cells)
        for level in range(height):
            line = Text()
            for at, (lines, style) in enumerate(cells):
                # Headings end on the same line, cells begin on it.
                shown = level - (height - len(lines) if index == 0 else 0)
                text = lines[shown] if 0 <= shown < len(lines) else ""
                line.append(" " * (_GAP * (at > 0)))
                line.append(text.ljust(widths[at]) if at == 0 else text.rjust(widths[at]), style)
            line.rstrip()
            drawn.append(line)
        if index == 0:
            drawn.append(Text("-" * _width(columns), "dim"))
    return drawn


def compare(
    runs: Comparable | Iterable[Comparable], *, metrics: Sequence[str] | None = None, sort: str | None = None
) -> Comparison:
    """Compare runs: folders (paths or gs:// URIs), `Run` objects, and jobs of a cluster or of this machine.

    `metrics` are the metrics to compare, by default the validation metrics and the training loss. `sort` is the column
    that orders the runs, by key or title. Raises InvalidData for a folder without a run, InvalidSpec for an unknown
    metric or column, and ClusterProblem for a job. Only runs that succeeded can be best.
    """
    single = isinstance(runs, str | os.PathLike | Run) or hasattr(runs, "run")
    given: Any = [runs] if single else runs
    loaded = tuple(map(_loaded, given))
    rows = [*_result_rows(loaded, _chosen(loaded, metrics)), *_setting_rows(loaded)]
    shown = tuple(row for row in rows if any(value is not None for value in row.values))
    comparison = Comparison(loaded, labels(loaded), shown, tuple(notes(loaded)))
    return comparison if sort is None else comparison.sorted_by(sort)


def _loaded(item: Comparable) -> Run:
    if isinstance(item, Run):
        return item
    if isinstance(item, str | os.PathLike):
        return load_run(os.fspath(item))
    if hasattr(item, "run"):
        return item.run()
    raise InvalidSpec("runs", f"{item!r} is no run", expected="a folder, a Run or a Job")


def _chosen(runs: Sequence[Run], metrics: Sequence[str] | None) -> list[str]:
    if not metrics:
        return metric_names(runs)
    known = dict.fromkeys(name for run in runs for name in run.metrics)
    for name in metrics:
        if name not in known:
            step = nearest(name, known) or f"Metrics: {', '.join(known) or 'none'}."
            raise InvalidSpec(_METRICS, f"no run has {name!r}", next_step=step)
    return list(dict.fromkeys(metrics))


def _result_rows(runs: Sequence[Run], metrics: Sequence[str]) -> list[Row]:
    able = [at for at, run in enumerate(runs) if run.succeeded]
    base = runs[_base(runs)] if runs else None

    def row(
        key: str, title: str, values: Iterable[Value], text: Callable[[Any], str] = str, better: Better = None
    ) -> Row:
        known = tuple(values)
        texts = tuple("-" if value is None else text(value) for value in known)
        return Row(key, title, known, texts, best(known, better, able=able), better=better)

    def values(field: str) -> Iterator[Value]:
        return (latest(run, field) for run in runs)

    per_step = step_seconds_direction(map(batch_size, runs))
    rows = [row("outcome", "outcome", map(outcome, runs))]
    rows += [
        row(name, readable(name), [run.metrics.get(name) for run in runs], number, better_direction(name))
        for name in metrics
    ]
    rows += [
        row("step_seconds", "time per step", values("step_seconds"), short_time, per_step),
        row("examples_per_second", "examples/s", values("examples_per_second"), "{:,.0f}".format, "higher"),
    ]
    if base is not None and len(runs) > 1:
        ratios = [speed_ratio(run, base) for run in runs]
        title = f"speed against {labels(runs)[_base(runs)]}"
        rows.append(row("speed", title, ratios, "{:.2f}x".format, "higher"))
    rows += [
        row("seconds", "total time", (run.seconds for run in runs), duration, "lower"),
        row("peak_memory_bytes", "peak memory", values("peak_memory_bytes"), size, "lower"),
        row("input_bound_percent", "waited for data", map(input_bound_percent, runs), "{:.0f}%".format, "lower"),
        row("attempts", "attempts", [run.history.attempts or None for run in runs]),
    ]
    return rows


def _setting_rows(runs: Sequence[Run]) -> list[Row]:
    def row(key: str, title: str, values: Iterable[Value]) -> Row:
        known = tuple(values)
        texts = tuple("-" if value is None else setting_text(value) for value in known)
        return Row(key, title, known, texts, kind="setting")

    named = [named_settings(run) for run in runs]
    titles = {key: title for key, (title, _) in named[0].items()} if named else {}
    rows = [row(key, title, (settings[key][1] for settings in named)) for key, title in titles.items()]
    return rows + [row(path, path, values) for path, values in other_settings(runs).items()]


def _base(runs: Sequence[Run]) -> int:
    """Return the index of the run whose speed is 1: the only one in float32, or else the first."""
    plain = [at for at, run in enumerate(runs) if run.precision == "float32"]
    return plain[0] if len(plain) == 1 else 0


def notes(runs: Sequence[Run]) -> list[str]:
    """Return notes that a reader of the numbers must know: failures, devices, precision, warnings, gaps, settings."""
    texts = []
    for run, label in zip(runs, labels(runs), strict=True):
        if run.finished and not run.succeeded and run.message:
            texts.append(f"{label}: {run.reason}: {run.message}")
        on_cpu = run.job is not None and run.job.accelerator.kind == "cpu"
        native = run.result.native_bfloat16 if run.result else None
        if native is None and run.history.started:
            native = run.history.started.native_bfloat16
        if run.precision == "mixed_bfloat16" and native is False:
            texts.append(f"{label}: no speed-up to be expected: this CPU has no native bfloat16")
        if run.precision == "mixed_float16" and on_cpu:
            texts.append(f"{label}: no speed-up to be expected: a CPU computes float16 more slowly than float32")
        if run.job is not None and run.job.accelerator.asked_for:
            texts.append(f"{label}: ran on the CPU instead of {run.job.accelerator.asked_for}")
        messages = dict.fromkeys((*(run.result.notices if run.result else ()), *run.history.warnings))
        texts += [f"{label}: {text}" for text in (*messages, *run.gaps)]
    batches = {size for run in runs if (size := batch_size(run)) is not None}
    replicas = {count for run in runs if (count := reported(run, "replicas_in_sync")) is not None}
    for different, title in ((batches, "global batch sizes"), (replicas, "numbers of replicas")):
        if len(different) > 1:
            texts.append(f"the runs have different {title}: compare examples/s, not the time per step")
    return list(dict.fromkeys(texts))

"""Comparison of runs as one value and as a terminal table; `mptj board` draws curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mptraining.display.text import duration, number, short_time, size
from mptraining.runs import Run, load_run
from mptraining_api.run_folder import metric_direction

if TYPE_CHECKING:
    from rich.table import Table

Better = Literal["higher", "lower"] | None
Value = float | str | None

_BETTER: dict[str | None, Better] = {"up": "higher", "down": "lower"}


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity over all runs: raw `values`, formatted `texts`, and the indices of the `best` runs."""

    key: str
    title: str
    values: tuple[Value, ...]
    texts: tuple[str, ...]
    best: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compared runs. `labels` are unique names of the runs; `notes` qualify the numbers."""

    runs: tuple[Run, ...]
    labels: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    def to_document(self) -> dict[str, Any]:
        """Return a JSON document: `runs` (one mapping of raw values per run: seconds, bytes), `best` and `notes`."""
        runs = [
            {"folder": run.folder, "label": label, **{row.key: row.values[index] for row in self.rows}}
            for index, (run, label) in enumerate(zip(self.runs, self.labels, strict=True))
        ]
        best = {row.key: [self.labels[index] for index in row.best] for row in self.rows if row.best}
        return {"runs": runs, "best": best, "notes": list(self.notes)}


def compare(folders: Sequence[str]) -> Comparison:
    """Compare the runs in `folders` (paths or gs:// URIs). Raises InvalidData for a folder without a run."""
    return side_by_side([load_run(folder) for folder in folders])


def side_by_side(runs: Sequence[Run]) -> Comparison:
    """Compare loaded runs. Only runs that succeeded can be best."""

    def row(
        key: str,
        title: str,
        value: Callable[[Run], Value],
        text: Callable[[Any], str] = str,
        better: Better = None,
    ) -> Row:
        values = tuple(value(run) for run in runs)
        texts = tuple("-" if each is None else text(each) for each in values)
        return Row(key, title, values, texts, _best(runs, values, better))

    base = _base(runs)
    # Step times are comparable only for equal batch sizes.
    same_batch = len({_reported(run, "global_batch_size") for run in runs}) == 1
    rows = [row("outcome", "outcome", outcome)]
    rows += [
        row(name, metric_title(name), _metric(name), number, better_direction(name)) for name in metric_names(runs)
    ]
    rows += [
        row("step_seconds", "time per step", _step_seconds, short_time, "lower" if same_batch else None),
        row("examples_per_second", "examples/s", _examples_per_second, lambda each: f"{each:,.0f}", "higher"),
    ]
    if len(runs) > 1:
        against = f"speed against {labels(runs)[base]}"
        rows.append(row("speed", against, lambda run: _ratio(run, runs[base]), lambda each: f"{each:.2f}x", "higher"))
    rows += [
        row("seconds", "total time", _seconds, duration, "lower"),
        row("peak_memory_bytes", "peak memory", _peak_memory, size, "lower"),
        row("input_bound_percent", "waited for data", _input_bound, lambda each: f"{each:.0f}%", "lower"),
        row("precision", "precision", lambda run: run.precision),
        row("strategy", "strategy", lambda run: _reported(run, "strategy")),
        row("replicas", "replicas", lambda run: _reported(run, "replicas_in_sync")),
        row("global_batch_size", "global batch size", lambda run: _reported(run, "global_batch_size")),
        row("accelerator", "accelerator", lambda run: run.job.accelerator.title if run.job else None),
        row("keras", "Keras", lambda run: _reported(run, "keras")),
        row("attempts", "attempts", lambda run: run.history.attempts or None),
    ]
    shown = [each for each in rows if any(value is not None for value in each.values)]
    return Comparison(tuple(runs), labels(runs), tuple(shown), tuple(notes(runs)))


def labels(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return a unique label per run: as many last elements of the folder's path as needed."""
    parts = [run.folder.rstrip("/").split("/") for run in runs]
    for depth in range(1, max(map(len, parts), default=0) + 1):
        found = tuple("/".join(each[-depth:]) for each in parts)
        if len(set(found)) == len(found):
            return found
    return tuple(f"{run.folder} ({index + 1})" for index, run in enumerate(runs))


def metric_names(runs: Sequence[Run]) -> list[str]:
    """Return the validation metrics (those that improve upwards first) and the training loss, or else all metrics."""
    names = list(dict.fromkeys(name for run in runs for name in run.metrics))
    validation = [name for name in names if name.startswith("val_")]
    chosen = sorted(validation or names, key=lambda name: better_direction(name) != "higher")
    return chosen + ["loss"] * (bool(validation) and "loss" in names)


def metric_title(name: str) -> str:
    return (
        name.replace("val_", "validation ", 1).replace("_", " ") if name.startswith("val_") else name.replace("_", " ")
    )


def better_direction(name: str) -> Better:
    """Return the direction in which a metric of that name improves; None if unknown."""
    return _BETTER.get(metric_direction(name))


def outcome(run: Run) -> str:
    if run.result is not None:
        return run.result.reason
    if run.history.finished is not None:
        return run.history.finished.reason
    return "unfinished" if run.history.progress is None else f"unfinished, step {run.history.progress.step}"


def notes(runs: Sequence[Run]) -> list[str]:
    """Return notes that a reader of the numbers must know: devices, precision, warnings, gaps, different settings."""
    found = []
    for run, label in zip(runs, labels(runs), strict=True):
        on_cpu = run.job is not None and run.job.accelerator.kind == "cpu"
        native = run.result.native_bfloat16 if run.result else None
        if native is None and run.history.started:
            native = run.history.started.native_bfloat16
        if run.precision == "mixed_bfloat16" and native is False:
            found.append(f"{label}: no speed-up to be expected: this CPU has no native bfloat16")
        if run.precision == "mixed_float16" and on_cpu:
            found.append(f"{label}: no speed-up to be expected: a CPU computes float16 more slowly than float32")
        if run.job is not None and run.job.accelerator.asked_for:
            found.append(f"{label}: ran on the CPU instead of {run.job.accelerator.asked_for}")
        messages = dict.fromkeys((*(run.result.notices if run.result else ()), *run.history.warnings))
        found += [f"{label}: {each}" for each in (*messages, *run.gaps)]
    for key, title in (
        ("global_batch_size", "global batch sizes"),
        ("replicas_in_sync", "numbers of replicas"),
    ):
        different = {value for run in runs if (value := _reported(run, key)) is not None}
        if len(different) > 1:
            found.append(f"the runs have different {title}: compare examples/s, not the time per step")
    return list(dict.fromkeys(found))


def table(comparison: Comparison) -> Table:
    """Return the comparison as a terminal table; the best value of each row is green and bold."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(show_edge=False, pad_edge=False, header_style="bold")
    drawn.add_column("")
    for label in comparison.labels:
        drawn.add_column(Text(label), justify="right", overflow="fold")
    for row in comparison.rows:
        cells = [Text(text, "bold green" if at in row.best else "") for at, text in enumerate(row.texts)]
        drawn.add_row(Text(row.title, "dim"), *cells)
    return drawn


def _best(runs: Sequence[Run], values: Sequence[Value], direction: Better) -> tuple[int, ...]:
    able = [at for at, run in enumerate(runs) if run.succeeded and isinstance(values[at], int | float)]
    if direction is None or len({values[at] for at in able}) < 2:
        return ()
    pick = max if direction == "higher" else min
    top = pick(float(values[at] or 0) for at in able)
    return tuple(at for at in able if values[at] == top)


def _base(runs: Sequence[Run]) -> int:
    """Return the index of the run whose speed is 1: the only one in float32, or else the first."""
    plain = [at for at, run in enumerate(runs) if run.precision == "float32"]
    return plain[0] if len(plain) == 1 else 0


def _metric(name: str) -> Callable[[Run], Value]:
    return lambda run: run.metrics.get(name)


def _reported(run: Run, field: str) -> Any:
    source = run.result or run.history.started
    return None if source is None else getattr(source, field)


def _step_seconds(run: Run) -> Value:
    source = run.result or run.history.progress
    return source.step_seconds if source else None


def _examples_per_second(run: Run) -> Value:
    source = run.result or run.history.progress
    return source.examples_per_second if source else None


def _ratio(run: Run, base: Run) -> Value:
    one, other = _examples_per_second(run), _examples_per_second(base)
    return one / other if isinstance(one, float) and isinstance(other, float) and other else None


def _seconds(run: Run) -> Value:
    """Return the run's total time; the result holds only the time of its own attempt."""
    return run.result.seconds if run.result and run.history.attempts <= 1 else run.history.seconds


def _input_bound(run: Run) -> Value:
    return run.result.input_bound_percent if run.result else None


def _peak_memory(run: Run) -> Value:
    source = run.result or run.history.progress
    return source.peak_memory_bytes if source else None

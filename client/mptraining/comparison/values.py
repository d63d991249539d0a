"""One quantity of one run: outcome, metrics, speed, time and memory."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from mptraining.runs import Run
from mptraining_api.run_folder import metric_direction

Better = Literal["higher", "lower"] | None
Value = float | str | None

_BETTER: dict[str | None, Better] = {"up": "higher", "down": "lower"}


# The same job run twice differs by as much in speed and memory.
TIE = 0.01


def best(values: Sequence[object], direction: Better, *, able: Sequence[int]) -> tuple[int, ...]:
    """Return the indices of the best value and of its ties; empty if all runs that are `able` to be best are ties."""
    numbers = {at: float(value) for at in able if isinstance(value := values[at], int | float) and math.isfinite(value)}
    if direction is None or len(numbers) < 2:
        return ()
    top = (max if direction == "higher" else min)(numbers.values())
    ties = tuple(at for at, value in numbers.items() if abs(value - top) <= TIE * max(abs(value), abs(top)))
    return () if len(ties) == len(numbers) else ties


def step_seconds_direction(batch_sizes: Iterable[object]) -> Better:
    """Return the better direction of the time per step, which is comparable for equal batch sizes only."""
    return "lower" if len(set(batch_sizes)) == 1 else None


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
    return re.sub("^val_", "validation ", name).replace("_", " ")


def better_direction(name: str) -> Better:
    """Return the direction in which a metric of that name improves; None if unknown."""
    return _BETTER.get(metric_direction(name))


def outcome(run: Run) -> str:
    """Return the reason of the run's end; unfinished, with its last step, if none was reported."""
    if run.reason is not None:
        return run.reason
    return "unfinished" if run.history.progress is None else f"unfinished, step {run.history.progress.step}"


def reported(run: Run, field: str) -> Any:
    """Return a field that both Result and Started have; None before the start."""
    source = run.result or run.history.started
    return None if source is None else getattr(source, field)


def latest(run: Run, field: str) -> float | None:
    """Return a field that both Result and Progress have; None before the first progress."""
    source = run.result or run.history.progress
    return None if source is None else getattr(source, field)


def speed_ratio(run: Run, base: Run) -> float | None:
    speed, other = latest(run, "examples_per_second"), latest(base, "examples_per_second")
    return speed / other if speed is not None and other else None


def input_bound_percent(run: Run) -> float | None:
    source = run.result or run.history.finished
    return source.input_bound_percent if source else None

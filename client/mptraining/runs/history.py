"""Training curves of a run as a value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mptraining.display.text import counted, metrics
from mptraining.runs.columns import GAUGE_KEYS, GAUGE_NAMES, Columns, Curves, columns, last, merge
from mptraining.runs.facts import Launches, LaunchFacts
from mptraining_api.events import GAUGES, Event, Finished, Notice, Progress, Started
from mptraining_api.problems import nearest

if TYPE_CHECKING:
    from mptraining.display.curves import Panel

_GAUGE_OF = {key: name for name, key in GAUGE_KEYS.items()}


@dataclass(frozen=True, slots=True)
class Point:
    """Metrics and gauges at a step; `seconds` is the training time until then over all attempts, without pauses.

    `gauges` has the numbers of the Progress event under their names there (`mptraining_api.events`), such as
    learning_rate, gradient_norm, loss_scale, step_seconds and device_memory_used_bytes. `time`: seconds since 1970.
    """

    step: int
    seconds: float
    metrics: Mapping[str, float]
    epoch: int | None = None
    gauges: Mapping[str, float] = field(default_factory=dict)
    time: float = 0.0


@dataclass(frozen=True, repr=False, eq=False)
class History:
    """The chief's events of all attempts. `seconds` is the total time of the attempts.

    `history["loss"]` is a list with one value per epoch, as in Keras' `History.history`; `series("loss")` has every
    recorded value; `to_pandas()` is the whole table; `plot()` draws it.
    """

    curves: Curves = field(default_factory=Curves)
    launches: Launches = field(default_factory=Launches)
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, launches: Sequence[Columns]) -> History:
        """Return the history of a run from the events of its launches, in order of time."""
        notices = (event for launch in launches for _, event in launch.others if isinstance(event, Notice))
        return cls(
            merge(launches),
            Launches(LaunchFacts.of(number, launch) for number, launch in enumerate(launches, 1)),
            warnings=tuple(dict.fromkeys(notice.message for notice in notices if notice.level == "Warning")),
        )

    @property
    def attempts(self) -> int:
        return len(self.launches)

    @property
    def started(self) -> Started | None:
        return self.launches.started

    @property
    def progress(self) -> Progress | None:
        return self.launches.progress

    @property
    def finished(self) -> Finished | None:
        return self.launches.finished

    @property
    def seconds(self) -> float | None:
        return self.curves.total_seconds if self.attempts else None

    @cached_property
    def points(self) -> tuple[Point, ...]:
        return self.points_from(0)

    def points_from(self, first: int) -> tuple[Point, ...]:
        """Return the points with that index and later ones."""
        curves = self.curves
        count = len(curves.step) - first
        metrics: list[dict[str, float]] = [{} for _ in range(count)]
        gauges: list[dict[str, float]] = [{} for _ in range(count)]
        for key, (at, values) in curves.values.items():
            name, into = (_GAUGE_OF[key], gauges) if key in _GAUGE_OF else (key, metrics)
            begin = int(at.searchsorted(first))
            for index, value in zip((at[begin:] - first).tolist(), values[begin:].tolist(), strict=True):
                into[index][name] = value
        rows = zip(
            *(column[first:].tolist() for column in (curves.step, curves.seconds, curves.epoch, curves.time)),
            metrics,
            gauges,
            strict=True,
        )
        return tuple(
            Point(int(step), seconds, known, None if math.isnan(epoch) else int(epoch), measured, time)
            for step, seconds, epoch, time, known, measured in rows
        )

    def keys(self) -> list[str]:
        """Return the names of the recorded metrics, then those of the gauges."""
        recorded = self.curves.values
        return [*self._metric_names, *(name for name, key in GAUGE_KEYS.items() if key in recorded)]

    @property
    def _metric_names(self) -> list[str]:
        return [name for name in self.curves.values if name not in GAUGE_NAMES]

    def __getitem__(self, name: str) -> list[float]:
        """Return the last recorded value of each epoch that has one. Raises KeyError."""
        series = self.curves.values.get(self._key(name))
        if series is None:
            known = ", ".join(self.keys()) or "nothing"
            raise KeyError(f"{name!r} was not recorded. {nearest(name, self.keys())} Recorded: {known}")
        return list(dict(zip(self.curves.epoch[series.at].tolist(), series.values.tolist(), strict=True)).values())

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def series(self, name: str) -> list[tuple[int, float]]:
        """Return (step, value) of every point that has the metric or gauge; empty if none has it."""
        steps, values = self.curves.series(self._key(name))
        return list(zip(map(int, steps.tolist()), values.tolist(), strict=True))

    def _key(self, name: str) -> str:
        """Return the name of a series of `curves`; a metric comes before the gauge of that name."""
        return name if name in self.curves.values else GAUGE_KEYS.get(name, name)

    @property
    def metrics(self) -> Mapping[str, float]:
        """Return the last value of every metric; those of the Finished event are the last ones."""
        return self.launches.metrics(None, last(self.curves.values))

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame: a row per point with the columns step, seconds, epoch, metrics and gauges.

        A value that was not recorded at a step is NaN. Raises InvalidProgram if pandas is not installed.
        """
        from mptraining.display.plot import load_pandas

        rows = [
            {"step": point.step, "seconds": point.seconds, "epoch": point.epoch, **point.metrics, **point.gauges}
            for point in self.points
        ]
        return load_pandas().DataFrame(rows, columns=["step", "seconds", "epoch", *self.keys()])

    def plot(self, *names: str) -> Any:
        """Plot the named metrics and gauges against the step; by default all metrics and the main gauges.

        Returns matplotlib's axes, one for each chart, and without matplotlib an object that a notebook shows as SVG.
        Raises InvalidProgram outside a notebook if matplotlib is not installed, KeyError for an unknown name.
        """
        from mptraining.display.plot import plot

        for name in names:
            self[name]  # raises KeyError
        return plot(self.panels(names))

    def __repr__(self) -> str:
        count = len(self.curves.step)
        end = f" to step {int(self.curves.step[-1])}" if count else ""
        parts = [f"{count} points{end}, {counted(self.attempts, 'attempt')}", metrics(self.metrics)]
        return f"<History: {'  '.join(filter(None, parts))}>"

    def _repr_html_(self) -> str:
        from mptraining.display.html import card

        return card(repr(self)[1:-1], panels=self.panels())

    def panels(self, names: Sequence[str] = ()) -> list[Panel]:
        """Return the charts that `plot` draws."""
        from mptraining.display import curves

        if not names:
            names = curves.shown_by_default(self._metric_names, {name: self.series(name) for name in GAUGES})
        return curves.panels({name: self.series(name) for name in names})


def history(attempts: Sequence[Sequence[Event]]) -> History:
    """Return the history of a run from the events of its attempts, each in order of time."""
    last = [next((event for event in reversed(attempt) if isinstance(event, Progress)), None) for attempt in attempts]
    launches = map(columns, attempts, last)
    return History.of([launch for launch in launches if launch is not None])

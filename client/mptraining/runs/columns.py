"""Events of one process as columns: numpy arrays of its Progress events, and the few other events as values."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray
from pydantic.alias_generators import to_camel

from mptraining_api.events import GAUGES, Event, Finished, Progress, Started, parse, restart_step
from mptraining_api.run_folder import metric_direction

Column = NDArray[np.float64]
Axis = Literal["step", "epoch", "seconds"]

# The gauges' names in JSON, by which a series is known: a metric of a user may be named learning_rate, too.
GAUGE_KEYS = {name: to_camel(name) for name in GAUGES}
GAUGE_NAMES = frozenset(GAUGE_KEYS.values())

_EXACT = 2**53
# Those that a column of float64 holds exactly; Python's have no limit, but numpy's and those of an answer do.
_Whole = Annotated[int, msgspec.Meta(ge=-_EXACT, le=_EXACT)]
_Number = float | Literal["NaN", "Infinity", "-Infinity"]
_TYPES: Mapping[str, Any] = {"time": float, "step": _Whole, "epoch": _Whole, "metrics": dict[str, _Number]}
# The fields of Progress that are drawn, decoded without pydantic: a run has very many of them.
_Point: Any = msgspec.defstruct(
    "_Point",
    [*_TYPES.items(), *((name, float | None, None) for name in GAUGES)],
    tag="Progress",
    tag_field="kind",
    rename="camel",
    gc=False,
)
_POINTS = (_Point, Progress)
# The other events are few: only their kind is decoded here.
_KINDS = [kind.model_fields["kind"].default for kind in get_args(Event) if kind is not Progress]
_OTHERS = [msgspec.defstruct(f"_{kind}", [], tag=kind, tag_field="kind") for kind in _KINDS]
_DECODER: Any = msgspec.json.Decoder(Union[(_Point, *_OTHERS)])
_LONG_NUMBER = re.compile(rb"\d{16}")
# The last is of values within values without an end.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Series(NamedTuple):
    """The points that have a value, by their indices, and the values."""

    at: NDArray[np.int64]
    values: Column


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Consecutive events of one process.

    `time`, `step` and `epoch` have one element for each Progress event, and one for a Finished event with metrics,
    whose epoch is -1. `others` are the events that are no Progress, each with the number of points before it.
    """

    first: float
    last: float
    time: Column
    step: Column
    epoch: Column
    values: dict[str, Series]
    others: tuple[tuple[int, Event], ...]
    progress: Progress | None = None

    @property
    def started(self) -> Started | None:
        return next((event for _, event in reversed(self.others) if isinstance(event, Started)), None)

    @property
    def finished(self) -> Finished | None:
        return next((event for _, event in reversed(self.others) if isinstance(event, Finished)), None)

    @property
    def begin(self) -> float:
        """Return the time of the first Started event, or else of the first event."""
        return next((event.time for _, event in self.others if isinstance(event, Started)), self.first)


def decode(data: bytes) -> Columns | None:
    """Decode whole lines; return None if they hold no event. Lines that are no events are ignored."""
    lines = data.splitlines()
    try:
        events = _DECODER.decode_lines(data)
    except _UNREADABLE:
        events = []
    if len(events) != len(lines):
        # There are lines that are no events.
        events = [_decoded(line) for line in lines]
    last = b""
    for index, event in enumerate(events):
        if type(event) is not _Point:
            events[index] = _parsed(lines[index])
        if isinstance(events[index], _POINTS):
            last = lines[index]
    # The last Progress is read as it is shown, with all of its fields.
    progress = _parsed(last)
    known = [event for event in events if event is not None]
    return columns(known, progress if isinstance(progress, Progress) else None)


def _decoded(line: bytes) -> Any:
    try:
        return _DECODER.decode(line)
    except _UNREADABLE:
        return None


def _parsed(line: bytes) -> Event | None:
    event = parse(line.decode("utf-8", errors="replace"))
    if event is None or not _LONG_NUMBER.search(line):
        return event
    numbers = (value for value in vars(event).values() if isinstance(value, int))
    return event if all(abs(number) <= _EXACT for number in numbers) else None


def columns(events: Sequence[Any], progress: Progress | None) -> Columns | None:
    """Return the columns of events in the order in which they were written; None without events."""
    if not events:
        return None
    points: list[Any] = []
    others: list[tuple[int, Event]] = []
    for event in events:
        if isinstance(event, _POINTS):
            points.append(event)
            continue
        others.append((len(points), event))
        if _has_point(event):
            points.append(_Point(time=event.time, step=event.step, epoch=-1, metrics=event.metrics))
    return Columns(
        first=events[0].time,
        last=events[-1].time,
        time=np.array([point.time for point in points], np.float64),
        step=np.array([point.step for point in points], np.float64),
        epoch=np.array([point.epoch for point in points], np.float64),
        values=_metrics([point.metrics for point in points]) | _gauges(points),
        others=tuple(others),
        progress=progress,
    )


def _has_point(event: Event) -> bool:
    """Return whether the event has metrics of a step, which may be later than that of the last Progress."""
    return isinstance(event, Finished) and event.step is not None and bool(event.metrics)


def _metrics(rows: Sequence[Mapping[str, Any]]) -> dict[str, Series]:
    names = dict.fromkeys(itertools.chain.from_iterable(rows))
    return {name: _series([row.get(name) for row in rows]) for name in names}


def _gauges(points: Sequence[Any]) -> dict[str, Series]:
    measured = ((key, list(map(attrgetter(name), points))) for name, key in GAUGE_KEYS.items())
    return {key: _series(values) for key, values in measured if values.count(None) < len(values)}


def _series(values: Sequence[Any]) -> Series:
    if values.count(None) == 0:
        return Series(np.arange(len(values)), np.array(values, np.float64))
    at = [index for index, value in enumerate(values) if value is not None]
    return Series(np.array(at, np.int64), np.array([values[index] for index in at], np.float64))


def join(parts: Sequence[Columns]) -> Columns | None:
    if len(parts) < 2:
        return parts[0] if parts else None
    starts = [0, *itertools.accumulate(len(part.time) for part in parts)]
    names = dict.fromkeys(name for part in parts for name in part.values)
    return Columns(
        first=parts[0].first,
        last=parts[-1].last,
        time=np.concatenate([part.time for part in parts]),
        step=np.concatenate([part.step for part in parts]),
        epoch=np.concatenate([part.epoch for part in parts]),
        values={name: _joined(name, parts, starts) for name in names},
        others=tuple(
            (start + at, event) for start, part in zip(starts, parts, strict=False) for at, event in part.others
        ),
        progress=next((part.progress for part in reversed(parts) if part.progress is not None), None),
    )


def _joined(name: str, parts: Sequence[Columns], starts: Sequence[int]) -> Series:
    known = [(start, part.values[name]) for start, part in zip(starts, parts, strict=False) if name in part.values]
    at = np.concatenate([start + series.at for start, series in known])
    return Series(at, np.concatenate([series.values for _, series in known]))


_NONE = np.empty(0)


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """Columns of all attempts of a run, without what was trained again, with one element per point.

    `time` is in seconds since 1970, `seconds` the training time until then, without pauses between attempts.
    """

    time: Column = field(default_factory=lambda: _NONE)
    step: Column = field(default_factory=lambda: _NONE)
    epoch: Column = field(default_factory=lambda: _NONE)
    seconds: Column = field(default_factory=lambda: _NONE)
    values: dict[str, Series] = field(default_factory=dict)
    steps_per_epoch: int | None = None
    # The seconds of each launch whose steps were trained again.
    lost_seconds: tuple[float, ...] = ()
    total_seconds: float = 0.0

    def series(self, name: str, x: Axis = "step") -> tuple[Column, Column]:
        """Return the points of a metric, or of a gauge by its name in JSON, against x; empty for unknown names."""
        series = self.values.get(name)
        if series is None:
            return _NONE, _NONE
        axis = {"step": self.step, "epoch": self.epochs, "seconds": self.seconds}[x]
        return axis[series.at], series.values

    @property
    def epochs(self) -> Column:
        """Return the passes over the data until each point, in fractions if the length of an epoch is known."""
        return self.step / self.steps_per_epoch if self.steps_per_epoch else self.epoch

    @property
    def size(self) -> int:
        """Return the number of bytes in memory."""
        return 32 * len(self.step) + 16 * sum(len(series.at) for series in self.values.values())


def merge(launches: Sequence[Columns]) -> Curves:
    """Merge the launches of a run, in order of time. `mptraining_api.events.restart_step` says what counts no more."""
    whole = join(launches)
    if whole is None:
        return Curves()
    seconds, past = [], 0.0
    for launch in launches:
        seconds.append(past + launch.time - launch.begin)
        past += launch.last - launch.begin
    elapsed, count = np.concatenate(seconds), len(whole.step)
    keep, epoch = np.ones(count, np.bool_), whole.epoch.copy()
    # The step to which training went back at each point, and behind the last.
    back = np.append(whole.step - 1, np.inf)
    for at, event in whole.others:
        if _has_point(event):
            epoch[at] = epoch[at - 1] if at else np.nan
            if at and whole.step[at] <= whole.step[at - 1]:
                # The last Progress has the same step, and more values.
                keep[at], back[at] = False, np.inf
        elif (step := restart_step(event)) is not None:
            back[at] = min(back[at], step)
    lost = whole.step > np.minimum.accumulate(back[::-1])[::-1][1:]
    keep &= ~lost
    index = np.cumsum(keep) - 1
    values = {}
    for name, series in whole.values.items():
        kept = keep[series.at]
        if kept.any():
            values[name] = Series(index[series.at[kept]], series.values[kept])
    started = [launch.started for launch in launches if launch.started is not None]
    # A point took the time since the point before it.
    took = [np.diff(launch.time, prepend=launch.begin).clip(min=0.0) for launch in launches]
    ends = list(itertools.accumulate(map(len, took)))
    return Curves(
        time=whole.time[keep],
        step=whole.step[keep],
        epoch=epoch[keep],
        seconds=elapsed[keep],
        values=values,
        steps_per_epoch=started[-1].steps_per_epoch if started else None,
        lost_seconds=tuple(
            float(part[again].sum()) for part, again in zip(took, np.split(lost, ends[:-1]), strict=True)
        ),
        total_seconds=past,
    )


def best(values: Mapping[str, Series]) -> dict[str, float]:
    """Return the best value of each metric whose direction is known."""
    best_values = {}
    for name, (_, column) in values.items():
        direction = metric_direction(name) if name not in GAUGE_NAMES else None
        if direction is not None and not np.isnan(column).all():
            best_values[name] = float(np.nanmax(column) if direction == "up" else np.nanmin(column))
    return best_values


def last(values: Mapping[str, Series]) -> dict[str, float]:
    """Return the last value of each metric, which may be NaN."""
    return {name: float(column[-1]) for name, (_, column) in values.items() if name not in GAUGE_NAMES and len(column)}

"""Decoded events of one worker as columns: numpy arrays of its Progress events, and the few other events as values.

Only the fields that are drawn are decoded. The numeric fields are those of `mptraining_api.events.Progress`, so that a
new one appears on the board without a change here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from pydantic.alias_generators import to_camel

from mptraining_api import events as api_events
from mptraining_api.events import GAUGES

Column = NDArray[np.float64]

GAUGE_NAMES = frozenset(map(to_camel, GAUGES))


# Those that a column of float64 holds exactly; Python's have no limit, but numpy's and those of an answer do.
Whole = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]


class _Base(msgspec.Struct, tag_field="kind", rename="camel", gc=False):
    mptraining: Whole
    time: float
    attempt: Whole
    worker: Whole


class Started(_Base, tag="Started"):
    strategy: str
    precision: str
    keras: str
    replicas_in_sync: Whole
    global_batch_size: Whole | None = None
    total_steps: Whole | None = None
    steps_per_epoch: Whole | None = None
    first_step: Whole = 0
    start_up_seconds: float | None = None


class Notice(_Base, tag="Notice"):
    topic: str
    message: str
    level: str = "Info"


class Saved(_Base, tag="Saved"):
    step: Whole
    uri: str
    bytes: Whole
    seconds: float


class Recovered(_Base, tag="Recovered"):
    from_step: Whole
    to_step: Whole
    precision: str
    message: str


class Finished(_Base, tag="Finished", gc=True):
    reason: str
    exit_code: Whole
    message: str
    step: Whole | None = None
    metrics: dict[str, float | str] = {}


class _ProgressBase(_Base, tag="Progress"):
    step: Whole
    epoch: Whole
    metrics: dict[str, float | str]
    total_steps: Whole | None = None
    estimated_remaining_seconds: float | None = None
    precision: str | None = None


Other = Started | Notice | Saved | Recovered | Finished
# A Struct with one optional number for each gauge of the contract.
Progress: Any = msgspec.defstruct(
    "Progress",
    [(name, float | None, None) for name in GAUGES],
    bases=(_ProgressBase,),
    tag="Progress",
    tag_field="kind",
    rename="camel",
    gc=False,
)
_DECODER: Any = msgspec.json.Decoder(
    Started | Notice | Saved | Recovered | Finished | Progress,  # type: ignore[operator,unused-ignore]
    strict=True,
)
_PLAIN = msgspec.json.Decoder()
# The last is of values within values without an end.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive events of one process.

    `time`, `step` and `epoch` have one element for each Progress event, and so has each array of `values` (NaN where
    the event has no such value). `cuts` are pairs (i, s): after the first i Progress events training went back to step
    s, so that those of them behind s count no more. `begin` is the time of the first Started event.
    """

    first: float
    last: float
    begin: float | None
    time: Column
    step: Column
    epoch: Column
    values: dict[str, Column]
    cuts: tuple[tuple[int, int], ...]
    others: tuple[Other, ...]
    progress: Any = None


def metrics(values: Mapping[str, Column]) -> dict[str, Column]:
    """Return the columns of metrics without those of gauges and without unknown values; none is empty."""
    known = ((name, column[~np.isnan(column)]) for name, column in values.items() if name not in GAUGE_NAMES)
    return {name: column for name, column in known if len(column)}


def decode(lines: bytes) -> Batch | None:
    """Decode whole lines; return None if they hold no event. Lines that are no events are ignored."""
    return _batch(_events(lines))


def _events(lines: bytes) -> list[Any]:
    try:
        found: list[Any] = _DECODER.decode_lines(lines)
    except _UNREADABLE:
        found = [each for line in lines.splitlines() if (each := _event(line)) is not None]
    times = [each.time for each in found]
    if any(after < before for before, after in itertools.pairwise(times)):
        found.sort(key=lambda each: each.time)
    return found


def _event(line: bytes) -> Any:
    """Decode one line as the contract's own parser does, whose result is then in the names of this module."""
    try:
        return _DECODER.decode(line)
    except _UNREADABLE:
        parsed = api_events.parse(line.decode("utf-8", errors="replace"))
    if parsed is None:
        return None
    try:
        return msgspec.convert(_PLAIN.decode(parsed.to_json()), _DECODER.type)
    except _UNREADABLE:
        # The contract has no limit for whole numbers, and a column has.
        return None


def _batch(events: Sequence[Any]) -> Batch | None:
    if not events:
        return None
    points, others, cuts = [], [], []
    begin = None
    for event in events:
        if type(event) is Progress:
            points.append(event)
            continue
        others.append(event)
        if isinstance(event, Started):
            begin = event.time if begin is None else begin
            cuts.append((len(points), event.first_step))
        elif isinstance(event, Recovered):
            cuts.append((len(points), event.to_step))
    return Batch(
        first=events[0].time,
        last=events[-1].time,
        begin=begin,
        time=np.array([each.time for each in points], np.float64),
        step=np.array([each.step for each in points], np.float64),
        epoch=np.array([each.epoch for each in points], np.float64),
        values=_metrics(points) | _gauges(points),
        cuts=tuple(cuts),
        others=tuple(others),
        progress=points[-1] if points else None,
    )


def _metrics(points: Sequence[Any]) -> dict[str, Column]:
    rows = [each.metrics for each in points]
    names = dict.fromkeys(itertools.chain.from_iterable(rows))
    return {name: np.array([row.get(name) for row in rows], np.float64) for name in names}


def _gauges(points: Sequence[Any]) -> dict[str, Column]:
    found = {}
    for name in GAUGES:
        column = [getattr(each, name) for each in points]
        if column.count(None) < len(column):
            found[to_camel(name)] = np.array(column, np.float64)
    return found


def join(batches: Iterable[Batch]) -> Batch | None:
    """Join consecutive batches of one process into one."""
    parts = list(batches)
    if len(parts) < 2:
        return parts[0] if parts else None
    lengths = [len(each.time) for each in parts]
    starts = [0, *itertools.accumulate(lengths)]
    names = dict.fromkeys(name for each in parts for name in each.values)
    absent = [np.full(length, np.nan) for length in lengths]
    return Batch(
        first=parts[0].first,
        last=parts[-1].last,
        begin=next((each.begin for each in parts if each.begin is not None), None),
        time=np.concatenate([each.time for each in parts]),
        step=np.concatenate([each.step for each in parts]),
        epoch=np.concatenate([each.epoch for each in parts]),
        values={
            name: np.concatenate([each.values.get(name, none) for each, none in zip(parts, absent, strict=True)])
            for name in names
        },
        cuts=tuple((start + at, step) for start, each in zip(starts, parts, strict=False) for at, step in each.cuts),
        others=tuple(other for each in parts for other in each.others),
        progress=next((each.progress for each in reversed(parts) if each.progress is not None), None),
    )

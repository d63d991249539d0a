"""The JSON file of a run's rounds, written after each measurement, so that a killed run continues."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from hardware.cells import Cell, Scale, Turn, turns
from hardware.machine import Machine

# 2: fewer cells with fewer steps.
_VERSION = 2
_COMPARED = ("kind", "device", "count", "capability", "tensorflow", "keras")
# Rounds whose highest ratio is more than so many times the lowest do not agree.
AGREE = 1.2
Outcome = Literal["measured", "failed", "out of memory"]


@dataclass(frozen=True)
class Round:
    """The measurement of one cell. `seconds` are those of its processes; `values` are empty unless it is measured."""

    key: str
    number: int
    outcome: Outcome
    seconds: float
    message: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    # CPU, cores, memory and driver then: a job that was preempted continues on another machine of the same kind.
    host: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """`ratio` is that of the two medians, `low` and `high` are those of single rounds."""

    ratio: float
    low: float
    high: float

    @property
    def agrees(self) -> bool:
        # The medians may be of different rounds: their ratio must be one that the rounds have.
        return max(self.high, self.ratio) <= AGREE * min(self.low, self.ratio)

    def __str__(self) -> str:
        return (
            f"{self.ratio:.2f}"
            if self.agrees
            else f"rounds differ: {min(self.low, self.ratio):.2f} to {max(self.high, self.ratio):.2f}"
        )


@dataclass(frozen=True)
class Results:
    """`date` is that of the first measurement, ISO 8601."""

    machine: Machine
    scale: Scale
    date: str
    rounds: tuple[Round, ...] = ()

    def turns(self) -> tuple[Turn, ...]:
        return turns(self.machine, self.scale)

    def with_round(self, one: Round) -> Results:
        return replace(self, rounds=(*self.rounds, one))

    def of(self, cell: Cell) -> list[Round]:
        return [one for one in self.rounds if one.key == cell.key]

    def measured(self, cell: Cell) -> list[Round]:
        return [one for one in self.of(cell) if one.outcome == "measured"]

    def median(self, cell: Cell, name: str) -> float | None:
        """Return the median over the rounds; None if nothing was measured."""
        found = [one.values[name] for one in self.measured(cell) if one.values.get(name) is not None]
        return statistics.median(found) if found else None

    def comparison(self, ours: Cell, theirs: Cell) -> Comparison | None:
        """Return the ratio of the medians of examples per second; None if no round has both."""
        name = "examples_per_second"
        other = {one.number: one.values.get(name) for one in self.measured(theirs)}
        found = [one.values[name] / other[one.number] for one in self.measured(ours) if other.get(one.number)]
        mine, its = self.median(ours, name), self.median(theirs, name)
        if not found or mine is None or not its:
            return None
        return Comparison(mine / its, min(found), max(found))

    def ratio(self, ours: Cell, theirs: Cell) -> float | None:
        """Return the ratio of the medians; None if no round has both, or if the rounds do not agree."""
        found = self.comparison(ours, theirs)
        return found.ratio if found and found.agrees else None

    @property
    def seconds(self) -> float:
        return sum(one.seconds for one in self.rounds)


def save(results: Results, file: Path) -> None:
    """Write the file as a whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    text = {"version": _VERSION, **asdict(results)}
    part.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")
    part.replace(file)


def load(text: str | bytes, name: str) -> Results:
    """Parse the file `name`. Raises ValueError with the next step if another version wrote it."""
    read = json.loads(text)
    if read.pop("version", None) != _VERSION:
        raise ValueError(
            f"{name}: not of version {_VERSION} of this program; move it away, and the run starts from the beginning"
        )
    rounds = tuple(Round(**one) for one in read.pop("rounds"))
    return Results(machine=Machine(**read.pop("machine")), rounds=rounds, **read)


def differences(before: Machine, now: Machine) -> list[str]:
    """Return the fields by which the measured device or the programs differ, for the refusal to mix figures.

    The machine around a GPU or TPU may be another: nodes of one type differ in CPU model, bytes of memory and driver.
    """
    old, new = before.to_json(), now.to_json()
    names = [*_COMPARED, *(("cores",) if before.kind == "cpu" else ())]
    return [f"{name}: {old[name]!r} then, {new[name]!r} now" for name in names if old[name] != new[name]]


def without_failures(results: Results) -> Results:
    """Return the results with only what was measured, so that the rest is tried again."""
    return replace(results, rounds=tuple(one for one in results.rounds if one.outcome == "measured"))

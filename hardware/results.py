"""The JSON file of a run's rounds, written after each measurement, so that a killed run continues."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from hardware.cells import Cell, Scale, Turn, turns
from hardware.machine import Machine

_VERSION = 1
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

    def ratio(self, ours: Cell, theirs: Cell, name: str = "examples_per_second") -> float | None:
        """Return the median of the rounds' ratios; None if no round has both."""
        other = {one.number: one.values.get(name) for one in self.measured(theirs)}
        found = [one.values[name] / other[one.number] for one in self.measured(ours) if other.get(one.number)]
        return statistics.median(found) if found else None

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
    """Return the fields by which two machines differ, for the refusal to mix their figures."""
    old, new = before.to_json(), now.to_json()
    return [f"{name}: {old[name]!r} then, {new[name]!r} now" for name in old if old[name] != new[name]]


def without_failures(results: Results) -> Results:
    """Return the results with only what was measured, so that the rest is tried again."""
    return replace(results, rounds=tuple(one for one in results.rounds if one.outcome == "measured"))

"""The fields of a TFJob while they are converted: each is carried over, decided, left out with a reason, or refused.

A field that no rule has taken is refused when its section ends, so that none is dropped without a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mptraining_api.problems import InvalidSpec, nearest
from mptraining_api.validation.mistakes import FieldPath, field_text


@dataclass(frozen=True, slots=True)
class Carried:
    """A field of the TFJob, and the field of the job that has its value."""

    source: FieldPath
    target: str


@dataclass(frozen=True, slots=True)
class Noted:
    """A field with the reason why it was decided so, or left out."""

    where: str
    reason: str


@dataclass(slots=True)
class Report:
    """What became of the fields. `without` are the fields that the user gives up; `used` those that were refused."""

    without: frozenset[str] = frozenset()
    carried: list[Carried] = field(default_factory=list)
    decided: list[Noted] = field(default_factory=list)
    left_out: list[Noted] = field(default_factory=list)
    refused: list[InvalidSpec] = field(default_factory=list)
    used: set[str] = field(default_factory=set)

    def decide(self, where: str, reason: str) -> None:
        if Noted(where, reason) not in self.decided:
            self.decided.append(Noted(where, reason))

    def leave_out(self, path: FieldPath, reason: str) -> None:
        self.left_out.append(Noted(field_text(path), reason))

    def refuse(self, path: FieldPath, found: str, *, expected: str = "", next_step: str = "") -> None:
        """Refuse a field, unless the user gives it up."""
        where = field_text(path)
        if where in self.without:
            self.used.add(where)
            self.leave_out(path, "given up by --without")
            return
        step = f"{next_step} Or give it up: --without {where}." if next_step else f"Give it up: --without {where}."
        self.refused.append(InvalidSpec(where, found, expected=expected, next_step=step))


class Section:
    """One mapping of the TFJob. Fields that are null count as absent, as for the API server."""

    def __init__(self, content: object, path: FieldPath, report: Report) -> None:
        self.path = path
        self.report = report
        self._rest: dict[str, Any] = {}
        # For the name that a misspelled field is like.
        self._asked: set[str] = set()
        if isinstance(content, Mapping):
            self._rest = {name: value for name, value in content.items() if value is not None}
        elif content is not None:
            report.refused.append(InvalidSpec(field_text(path), f"{content!r}", expected="a section with fields"))

    def at(self, name: str) -> FieldPath:
        return (*self.path, name)

    def names(self) -> list[str]:
        """Return the names of the fields that were not taken yet."""
        return list(self._rest)

    def take(self, name: str, kind: type, expected: str) -> Any:
        """Return the value of a field; None if it is absent, or of another kind, which is refused."""
        self._asked.add(name)
        value = self._rest.pop(name, None)
        if value is None or (isinstance(value, kind) and not (kind is int and isinstance(value, bool))):
            return value
        where = field_text(self.at(name))
        self.report.refused.append(InvalidSpec(where, f"{value!r}", expected=expected))
        return None

    def text(self, name: str) -> str | None:
        found: str | None = self.take(name, str, "text")
        return found

    def number(self, name: str) -> int | None:
        found: int | None = self.take(name, int, "a whole number")
        return found

    def items(self, name: str) -> list[Any]:
        return self.take(name, list, "a list: [a, b]") or []

    def section(self, name: str) -> Section:
        return Section(self.take(name, dict, "a section with fields"), self.at(name), self.report)

    def sections(self, name: str) -> list[Section]:
        return [Section(each, (*self.at(name), index), self.report) for index, each in enumerate(self.items(name))]

    def carry(self, name: str, target: str, into: dict[str, Any], key: str | None = None) -> None:
        """Carry a field over as it is, unless it is absent or empty."""
        value = self._rest.pop(name, None)
        if value is None or value in ("", [], {}):
            return
        into[key or name] = value
        self.carried(name, target)

    def carried(self, name: str, target: str) -> None:
        self.report.carried.append(Carried(self.at(name), target))

    def leave_out(self, names: Iterable[str], reason: str) -> None:
        """Leave out those of the fields that are there, all for the same reason."""
        for name in names:
            if self._rest.pop(name, None) is not None:
                self.report.leave_out(self.at(name), reason)

    def refuse(self, name: str, found: str, *, expected: str = "", next_step: str = "") -> None:
        self._rest.pop(name, None)
        self.report.refuse(self.at(name), found, expected=expected, next_step=next_step)

    def end(self, known: Iterable[str] = (), advice: Mapping[str, str] | None = None) -> None:
        """Refuse the fields that are left: those in `known` have no counterpart, others are unknown."""
        known = tuple(known)
        for name in self.names():
            if name in known or name in (advice or {}):
                self.refuse(name, "has no counterpart", next_step=(advice or {}).get(name, ""))
            else:
                self.refuse(name, "unknown field", next_step=nearest(name, (*known, *self._asked)))

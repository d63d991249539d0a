"""Conditions on a section of a job: CEL for the API server and a Python predicate from one description.

Paths are those of YAML, below the section; a field is absent if a section around it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mptraining_api.rules.rule import Rule, field_of

# Sections that every job has.
_ALWAYS = ("program", "accelerator")


@dataclass(frozen=True, slots=True)
class Clause:
    """A condition; `a | b` holds if one of them does, of which `b` is evaluated only if `a` does not."""

    cel: str
    holds: Callable[[Any], bool]

    def __or__(self, other: Clause) -> Clause:
        return Clause(f"{self.cel} || {other.cel}", lambda section: self.holds(section) or other.holds(section))


def rule(
    at: str, field: str, clause: Clause, message: str, next_step: str, part: Callable[[Any], str] = lambda _: ""
) -> Rule:
    """Return the rule that the clause holds for every value at `at`."""
    return Rule(at, field, clause.cel, message, next_step, clause.holds, part)


def field_at(section: Any, path: str) -> Any:
    """Return the field at `path`; None if it is absent."""
    for name in path.split("."):
        section = None if section is None else field_of(section, name)
    return section


def absent(path: str) -> Clause:
    return Clause(" || ".join(f"!{each}" for each in _has(path)), lambda section: field_at(section, path) is None)


def present(path: str) -> Clause:
    return Clause(_all(_has(path)), lambda section: field_at(section, path) is not None)


def absent_or(path: str, *values: object) -> Clause:
    """Return the clause that the field is absent or has one of the values."""
    return absent(path) | Clause(_equal(path, values), lambda section: field_at(section, path) in values)


def absent_or_not(path: str, *values: object) -> Clause:
    """Return the clause that the field is absent or has another value."""
    return absent(path) | Clause(_other(path, values), lambda section: field_at(section, path) not in values)


def given_as(path: str, *values: object) -> Clause:
    """Return the clause that the field has one of the values."""
    return Clause(_all([*_has(path), _equal(path, values)]), lambda section: field_at(section, path) in values)


def given_other_than(path: str, *values: object) -> Clause:
    """Return the clause that the field has another value; an absent one has none."""
    return Clause(
        _all([*_has(path), _other(path, values)]), lambda section: field_at(section, path) not in (None, *values)
    )


def _cel(path: str) -> str:
    # `function` is a reserved word of CEL.
    return "self." + ".".join("__function__" if name == "function" else name for name in path.split("."))


def _has(path: str) -> list[str]:
    parts = path.split(".")
    first = 2 if parts[0] in _ALWAYS and len(parts) > 1 else 1
    return [f"has({_cel('.'.join(parts[:end]))})" for end in range(first, len(parts) + 1)]


def _all(conditions: list[str]) -> str:
    return f"({' && '.join(conditions)})" if len(conditions) > 1 else conditions[0]


def _equal(path: str, values: tuple[object, ...]) -> str:
    literals = [f"'{each}'" if isinstance(each, str) else str(each).lower() for each in values]
    return f"{_cel(path)} in [{', '.join(literals)}]" if len(literals) > 1 else f"{_cel(path)} == {literals[0]}"


def _other(path: str, values: tuple[object, ...]) -> str:
    equal = _equal(path, values)
    return f"!({equal})" if len(values) > 1 else equal.replace(" == ", " != ")

"""Validation rules by combinators: CEL for the API server, a Python check and the message follow from the shape.

A rule belongs to a section (`within`), and its paths are those of YAML below that section. A message names the field,
the value that was expected, the reason (`because`) and the next step (`fix`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from mptraining_api.validation.messages import either

# Sections that every object has.
_REQUIRED = frozenset({"accelerator", "metadata", "program", "spec"})


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a section: as CEL, as a Python predicate, and in words such as `with resize` or `on a TPU`."""

    cel: str
    holds: Callable[[Any], bool]
    words: str = ""
    # The step after which the condition no longer holds.
    undo: str = ""

    def __and__(self, other: Condition) -> Condition:
        cel = " && ".join(f"({operand})" if " || " in operand else operand for operand in (self.cel, other.cel))
        words = f"{self.words} and {other.words}"
        return Condition(cel, lambda section: self.holds(section) and other.holds(section), words)

    def __or__(self, other: Condition) -> Condition:
        cel, words = f"{self.cel} || {other.cel}", f"{self.words} or {other.words}"
        return Condition(cel, lambda section: self.holds(section) or other.holds(section), words)

    def __invert__(self) -> Condition:
        cel = f"!({self.cel})" if " " in self.cel else f"!{self.cel}"
        words = f"without {self.words[5:]}" if self.words.startswith("with ") else f"except {self.words}"
        return Condition(cel, lambda section: not self.holds(section), words)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule on the value at `at` (the whole object if empty); `[]` in a path stands for each item of a list.

    `field`: the path from the root of the field to correct; `expected`: without a full stop; `next_step`: one sentence.
    `cel` is None where the resource has no schema, so that only the operator and `mptj check` see the field.
    """

    at: str
    field: str
    cel: str | None
    expected: str
    next_step: str
    # The path below `field` of the part that breaks the rule, such as [1].name; None if the value keeps the rule.
    # The API server reports `field` alone.
    broken_at: Callable[[Any], str | None]

    @property
    def text(self) -> str:
        """The message for the API server, with the field, because the API server does not add it."""
        return f"{self.field}: expected {self.expected}. {self.next_step}"

    def values(self, job: object) -> Iterator[tuple[str, Any]]:
        """Yield path from the root and value of everything in the job that the rule validates."""
        yield from _walk(job, self.at.split(".") if self.at else [], "")


def _walk(value: Any, parts: list[str], path: str) -> Iterator[tuple[str, Any]]:
    if value is None:
        return
    if not parts:
        yield path, value
        return
    name = parts[0].removesuffix("[]")
    inner, below = field_at(value, name), f"{path}.{name}" if path else name
    items = [(inner, below)] if name == parts[0] else [(item, f"{below}[{i}]") for i, item in enumerate(inner or ())]
    for item, at in items:
        yield from _walk(item, parts[1:], at)


def field_at(section: Any, path: str) -> Any:
    """Return the field of models, maps and lists at `path`; None if it or a section around it is absent."""
    for name in _names(path):
        if isinstance(section, list):
            section = section[int(name)]
        elif isinstance(section, BaseModel):
            section = getattr(section, _attributes(type(section)).get(name, name), None)
        else:
            section = section.get(name) if isinstance(section, Mapping) else None
    return section


@functools.lru_cache(1024)
def _names(path: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[^.\[\]]+", path))


@functools.cache
def _attributes(model: type[BaseModel]) -> dict[str, str]:
    """Return the attributes of a model by their names in YAML."""
    return {field.alias or to_camel(name): name for name, field in model.model_fields.items()}


def _cel(path: str, self: str = "self") -> str:
    # `function` is a reserved word of CEL.
    return ".".join([self, *("__function__" if name == "function" else name for name in path.split("."))])


def present(path: str, self: str = "self") -> str:
    """Return CEL that holds if the field is present."""
    # The API server bounds the cost of has() and hasValue(), but not that of a comparison of optional values.
    field = _cel(path, self)
    return f"has({field})" if _REQUIRED.issuperset(path.split(".")[:-1]) else f"{field.replace('.', '.?')}.hasValue()"


def given(path: str, *values: str | float) -> Condition:
    """Return the condition that the field is present, with one of `values` if there are any."""
    cel, words = present(path), f"with {_in_words(path, values)}"
    if not values:
        return Condition(cel, lambda section: field_at(section, path) is not None, words, f"remove {path}")
    literals = [f"'{value}'" if isinstance(value, str) else str(value).lower() for value in values]
    cel += f" && {_cel(path)} " + (f"in [{', '.join(literals)}]" if len(values) > 1 else f"== {literals[0]}")
    return Condition(cel, lambda section: field_at(section, path) in values, words, f"change {path}")


def matching(path: str, pattern: str, words: str = "") -> Condition:
    """Return the condition that the pattern occurs in the field's text."""
    cel = f"{present(path)} && {_cel(path)}.matches('{pattern}')"
    return Condition(cel, lambda section: bool(re.search(pattern, str(field_at(section, path) or ""))), words)


def within(at: str, *rules: Rule) -> tuple[Rule, ...]:
    """Return the rules of the section at `at`."""
    return tuple(replace(rule, at=at, field=".".join(filter(None, (at, rule.field)))) for rule in rules)


def rule(field: str, condition: Condition, expected: str, fix: str) -> Rule:
    """Return the rule that the condition holds."""
    return Rule("", field, condition.cel, expected, fix, lambda section: None if condition.holds(section) else "")


def unchanged(field: str, *compared: str, started: str = "", expected: str, fix: str) -> Rule:
    """Return the rule that the `compared` fields (or `field`) stay, which the API server alone checks.

    It compares field by field, because CEL cannot compare objects except for some fields. With `started`, they may
    change until that CEL holds.
    """
    same = []
    for path in compared or (field,):
        now, before = present(path), present(path, "oldSelf")
        same.append(f"{now} == {before} && (!{now} || {_cel(path)} == {_cel(path, 'oldSelf')})")
    cel = " && ".join(same)
    return Rule("", field, f"!({started}) || {cel}" if started else cel, expected, fix, lambda _: None)


def requires(field: str, *values: str, when: Condition, because: str = "", fix: str = "") -> Rule:
    """Return the rule that, under a condition, the field is present, with one of `values` if there are any."""
    expected = f"{either(values) or _name(field)} {when.words}"
    step = f"Write {_in_words(_name(field), values[:1])}" if values else "Add it"
    return rule(field, ~when | given(field, *values), _with(expected, because), fix or _or_undo(step, when))


def forbids(field: str, *values: str | float, when: Condition | None = None, because: str = "", fix: str = "") -> Rule:
    """Return the rule that the field is absent, or has none of `values`: always, or under a condition."""
    condition = when & given(field, *values) if when else given(field, *values)
    expected = f"no {_in_words(_name(field), values)}" + (f" {when.words}" if when else "")
    return rule(field, ~condition, _with(expected, because), fix or _or_undo("Remove it", when))


def allows(field: str, *values: str | int, when: Condition, because: str = "", fix: str = "") -> Rule:
    """Return the rule that, under a condition, the field is absent or has one of `values`."""
    condition = ~(when & given(field)) | given(field, *values)
    expected = _with(f"{either([str(value) for value in values])} {when.words}", because)
    return rule(field, condition, expected, fix or _or_undo("Remove it", when))


def one_of(*fields: str, fix: str = "Keep one.") -> Rule:
    """Return the rule that exactly one of the fields is present."""
    return rule("", _count(fields, "== 1", 1), f"exactly one of {_list(fields)}", fix)


def at_most_one(*fields: str, fix: str = "Keep one.") -> Rule:
    """Return the rule that at most one of the fields is present. The message is at the second one of two."""
    return rule(
        fields[1] if len(fields) == 2 else "", _count(fields, "<= 1", 0, 1), f"at most one of {_list(fields)}", fix
    )


def _count(fields: tuple[str, ...], accepted: str, *counts: int) -> Condition:
    cel = f"[{', '.join(map(present, fields))}].filter(given, given).size() {accepted}"
    return Condition(cel, lambda section: sum(field_at(section, field) is not None for field in fields) in counts)


def matches(field: str, pattern: str, expected: str, fix: str) -> Rule:
    """Return the rule that the pattern occurs in the field's text, if the field is present."""
    return rule(field, ~given(field) | matching(field, pattern), expected, fix)


def ordered(low: str, high: str) -> Rule:
    """Return the rule that one required number is not above another."""
    condition = Condition(
        f"self.{low} <= self.{high}", lambda section: field_at(section, low) <= field_at(section, high)
    )
    return rule(high, condition, f"at least {low}", "Exchange the two.")


def without_keys(field: str, *keys: str, because: str, fix: str = "Remove them.") -> Rule:
    """Return the rule that a map has none of the keys; `domain/` stands for all keys of the domain."""
    listed = " || ".join(f"k.startsWith('{key}')" if key.endswith("/") else f"k == '{key}'" for key in keys)
    patterns = [f"{key}*" if key.endswith("/") else key for key in keys]
    condition = ~given(field) | Condition(
        f"!{_cel(field)}.exists(k, {listed})",
        lambda section: not any(fnmatchcase(name, p) for name in field_at(section, field) for p in patterns),
    )
    return rule(field, condition, f"no {_list(patterns)}, {because}", fix)


def distinct(field: str, *keys: str, fix: str) -> Rule:
    """Return the rule that the items of a list differ: in the values of all `keys` together, if there are any."""
    items = f"self.{field}"
    values = " + ".join(f"{items}.filter(i, has(i.{key})).map(i, i.{key})" for key in keys) or items
    cel = f"!has({items}) || ({values}).all(a, ({values}).exists_one(b, a == b))"

    def repeated(section: object) -> str | None:
        seen: set[object] = set()
        for key in keys or ("",):
            for index, item in enumerate(field_at(section, field) or ()):
                if (value := field_at(item, key)) in seen:
                    return f"[{index}]{key and f'.{key}'}"
                seen.update([] if value is None else [value])
        return None

    return Rule("", field, cel, f"every {keys[0] if keys else 'entry'} once", fix, repeated)


def _name(path: str) -> str:
    return path.rpartition(".")[2]


def _in_words(path: str, values: tuple[str | float, ...]) -> str:
    texts = [str(value).lower() if isinstance(value, bool) else str(value) for value in values]
    return f"{path}: {either(texts)}" if values else path


def _list(names: Sequence[str]) -> str:
    return either(names).replace(" or ", " and ")


def _with(expected: str, because: str) -> str:
    return f"{expected}, {because}" if because else expected


def _or_undo(step: str, when: Condition | None) -> str:
    return f"{step}, or {when.undo}." if when and when.undo else f"{step}."

"""The mistakes of one job file, all reported at once; `yaml_text` finds the line of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from mptraining_api.problems import InvalidSpec, Place, Problem


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake; `file` is empty for a document that comes from no file, `line` counts from 1."""

    file: str
    line: int | None
    problem: Problem

    def __str__(self) -> str:
        location = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{location}: {self.problem}" if self.file else str(self.problem)

    def to_document(self) -> dict[str, object]:
        """Return the mistake as plain JSON for editors and CI."""
        problem = self.problem
        return {
            "file": self.file,
            "line": self.line,
            "field": problem.where,
            "found": problem.found,
            "expected": problem.expected,
            "nextStep": problem.next_step,
            "message": str(self),
        }


class InvalidJobFile(InvalidSpec):
    """All mistakes of a job file, or of a file of settings, in the order of their lines."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(sorted(mistakes, key=lambda mistake: mistake.line or 0))
        first = self.mistakes[0].problem
        super().__init__(first.where, first.found, expected=first.expected, next_step=first.next_step)

    def __str__(self) -> str:
        return "\n".join(map(str, self.mistakes))

    def renamed(self, name: Callable[[Place], str | Place]) -> Self:
        for mistake in self.mistakes:
            mistake.problem.renamed(name)
        return self

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {mistake}" for mistake in self.mistakes]


# The place of a value in a document: names of fields and indices of lists.
FieldPath = tuple[str | int, ...]


def field_text(path: FieldPath, where: str = "") -> str:
    """Return the path as messages write it: `spec.data.features[2].name`."""
    text = where
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def field_path(text: str) -> FieldPath:
    """Return the path that `field_text` wrote, or that a user wrote in the same way."""
    return tuple(int(index) if index else name for name, index in re.findall(r"([^.\[\]\s]+)|\[(\d+)\]", text))


def value_at(document: object, path: FieldPath) -> object:
    """Return the value at `path`; None if there is none."""
    for part in path:
        if isinstance(document, Mapping):
            document = document.get(part)
        elif isinstance(document, list) and isinstance(part, int) and part < len(document):
            document = document[part]
        else:
            return None
    return document

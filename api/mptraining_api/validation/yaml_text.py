"""YAML 1.2 text of a user as plain values, with the line of every field.

`1e-3` is a number here, as for kubectl. Two plain values are read differently by kubectl, whose parser knows parts of
YAML 1.1: `yes`, `no`, `on`, `off` are text here and booleans there; `010` is 10 here and 8 there. `ambiguous` lists
such values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mptraining_api.problems import InvalidSpec, Problem
from mptraining_api.validation.mistakes import FieldPath, InvalidJobFile, Mistake, field_path, field_text
from mptraining_api.validation.yaml_errors import explain

if TYPE_CHECKING:
    from ruamel.yaml.nodes import MappingNode, Node, ScalarNode

_BOOLEANS = re.compile(r"yes|no|on|off", re.IGNORECASE)
_OCTAL = re.compile(r"0[0-7]+")
_MOST_LEVELS = 64


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """One document of a YAML file: `content` of plain JSON values; `lines` by path, from 1.

    `ambiguous` has (line, text) for each value that kubectl reads differently.
    """

    file: str
    content: Any
    lines: Mapping[FieldPath, int]
    ambiguous: tuple[tuple[int, str], ...] = ()

    def line(self, field: str) -> int | None:
        """Return the line of a field such as `spec.data.train[0]`, or of the nearest section around it."""
        return self.line_at(field_path(field))

    def line_at(self, path: FieldPath) -> int | None:
        """Return the line of the field at `path`, or of the nearest section around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)

    def located(self, problems: Iterable[Problem]) -> InvalidJobFile:
        """Return the error that reports these problems with their lines."""
        return InvalidJobFile([Mistake(self.file, self.line(problem.where), problem) for problem in problems])


def read_text(path: Path | str, *, expected: str) -> str:
    """Return the text of a file. Raises InvalidSpec, which says what was expected."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", None) or "not a text file"
        raise InvalidSpec(str(path), cause, expected=expected) from None


def read_yaml(text: str, *, file: str) -> list[YamlDocument]:
    """Return the documents in `text` that are not empty.

    Raises InvalidJobFile for text that is not YAML, and for fields that are given twice.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    yaml = YAML(typ="safe", pure=True)
    # The walk reports every duplicate with both lines; ruamel.yaml would stop at the first.
    yaml.allow_duplicate_keys = True
    documents: list[YamlDocument] = []
    duplicates: list[Mistake] = []
    try:
        for node in yaml.compose_all(text):
            walk = _Walk(file)
            walk.visit(node, (), 0)
            duplicates += walk.duplicates
            # Dates become text and keys that are numbers become text, as in the JSON that the API server gets.
            content = _plain(yaml.constructor.construct_document(node))
            if content is not None and not duplicates:
                documents.append(YamlDocument(file, content, walk.lines, tuple(walk.ambiguous)))
    except YAMLError as error:
        line, problem = explain(error, text)
        raise InvalidJobFile([Mistake(file, line, problem)]) from None
    if duplicates:
        raise InvalidJobFile(duplicates)
    return documents


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, str) else json.dumps(key, default=str): _plain(item) for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, (str, bool, int, float)) else str(value)


class _Walk:
    """Lines, duplicates and ambiguous values of one document's nodes."""

    def __init__(self, file: str) -> None:
        self.lines: dict[FieldPath, int] = {}
        self.duplicates: list[Mistake] = []
        self.ambiguous: list[tuple[int, str]] = []
        self._file = file

    def visit(self, node: Node, path: FieldPath, level: int) -> None:
        from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        if level > _MOST_LEVELS:
            problem = InvalidSpec(field_text(path), f"more than {_MOST_LEVELS} levels of nesting")
            raise InvalidJobFile([Mistake(self._file, line, problem)])
        if isinstance(node, MappingNode):
            for key, value, name in self._entries(node, path):
                self.lines[(*path, name)] = key.start_mark.line + 1
                self.visit(value, (*path, name), level + 1)
        elif isinstance(node, SequenceNode):
            for index, item in enumerate(node.value):
                self.visit(item, (*path, index), level + 1)
        elif isinstance(node, ScalarNode):
            self._note_ambiguous(node, path, line)

    def _entries(self, node: MappingNode, path: FieldPath) -> Iterator[tuple[Node, Node, str]]:
        first: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key.value, str):
                problem = InvalidSpec(
                    field_text(path) or "this document",
                    "a list or a mapping as the name of a field",
                    expected="a text",
                    next_step="Look at the brackets, braces and question marks here.",
                )
                raise InvalidJobFile([Mistake(self._file, line, problem)])
            name = str(key.value)
            if name in first and name != "<<":
                problem = InvalidSpec(
                    field_text((*path, name)),
                    f"given twice, first on line {first[name]}",
                    expected="each field once",
                    next_step="Remove one of the two, or join them.",
                )
                self.duplicates.append(Mistake(self._file, line, problem))
            first.setdefault(name, line)
            yield key, value, name

    def _note_ambiguous(self, node: ScalarNode, path: FieldPath, line: int) -> None:
        if node.style:
            return
        text = str(node.value)
        if _BOOLEANS.fullmatch(text):
            meaning = "true" if text.lower() in ("yes", "on") else "false"
            self._note(
                line, path, f"{text} is text here (YAML 1.2) and {meaning} for kubectl; write {json.dumps(text)}"
            )
        elif _OCTAL.fullmatch(text):
            self._note(line, path, f"{text} is {int(text)} here (YAML 1.2) and {int(text, 8)} for kubectl")

    def _note(self, line: int, path: FieldPath, text: str) -> None:
        self.ambiguous.append((line, f"{field_text(path)}: {text}"))

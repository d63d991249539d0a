"""Removal of secret values from Events and from kept program output, which appear in the status, in Kubernetes Events
and in the run folder, and so are visible to users without access to Secrets.

The operator passes the names of variables and mounted files that come from Secrets. Values of fewer than 8 characters
are not replaced, since they occur in ordinary text. The program's own output is changed in the run folder only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from mptraining_api.launch import SECRET_PATHS, SECRET_VARIABLES

SHORTEST = 8
# A value's first 16 characters are enough for a match, because long messages are truncated.
_BEGINNING = 16
# A Secret has at most 1 MiB; keys and tokens are far below this limit.
_LARGEST_FILE = 64 * 1024
_MOST_FILES = 64
# Variables of every process, which a pattern with `*` does not match.
_NEVER_MATCHED = ("PATH", "HOME", "PWD", "HOSTNAME", "LANG", "PYTHONPATH", "LD_LIBRARY_PATH")
_OWN = ("MPTRAINING_", "KUBERNETES_")


class SecretValues:
    """`variables`: values by name. `paths`: files, or folders of files, that are read at each use."""

    def __init__(self, variables: Mapping[str, str], paths: tuple[Path, ...] = ()) -> None:
        self._variables = dict(variables)
        self._paths = paths

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> SecretValues:
        """Return the values that the launch variables name; none in a local run."""
        named = [name for name in environment.get(SECRET_VARIABLES, "").split(",") if name]
        values = {
            name: value
            for name, value in environment.items()
            if name != SECRET_VARIABLES and any(_matches(pattern, name) for pattern in named)
        }
        return cls(values, tuple(Path(part) for part in environment.get(SECRET_PATHS, "").split(":") if part))

    def redact(self, text: str) -> str:
        """Return the text with each value replaced by the name of its source."""
        if not self._variables and not self._paths:
            return text
        # Longer values come first, because a value may be part of another.
        for value, source in sorted(self._values(), key=lambda entry: -len(entry[0])):
            text = _without(text, value, f"(the value of {source})")
        return text

    def _values(self) -> Iterator[tuple[str, str]]:
        for name, value in self._variables.items():
            yield from ((part, name) for part in _parts(value))
        for path in self._paths:
            files = sorted(path.rglob("*")) if path.is_dir() else [path]
            for file in islice((file for file in files if file.is_file()), _MOST_FILES):
                yield from ((part, str(file)) for part in _parts(_read(file)))


def _matches(pattern: str, name: str) -> bool:
    if not pattern.endswith("*"):
        return pattern == name
    return name.startswith(pattern[:-1]) and name not in _NEVER_MATCHED and not name.startswith(_OWN)


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(_LARGEST_FILE).decode("utf-8", "replace")
    except OSError:
        return ""


def _parts(value: str) -> Iterator[str]:
    """Yield the value, its lines, and the strings in it if it is JSON, each above a minimum length."""
    value = value.strip()
    if len(value) >= SHORTEST:
        yield value
    lines = [line.strip() for line in value.splitlines()]
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= _BEGINNING and not line.startswith("-----"))
    if value.startswith(("{", "[")):
        try:
            document = json.loads(value)
        except (ValueError, RecursionError):
            return
        # Addresses in a key file (e-mail, server) are no secrets, and errors must name them.
        texts = (text for text in _texts(document) if "@" not in text and "://" not in text)
        for text in texts:
            yield from (part for part in (text, *text.splitlines()) if len(part) >= _BEGINNING)


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict | list):
        for child in node.values() if isinstance(node, dict) else node:
            yield from _texts(child)


def _without(text: str, value: str, words: str) -> str:
    beginning = value[:_BEGINNING]
    kept, rest = [], text
    while (at := rest.find(beginning)) >= 0:
        alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(rest[at:], value, strict=False)))
        kept += [rest[:at], words]
        rest = rest[at + alike :]
    return "".join([*kept, rest])

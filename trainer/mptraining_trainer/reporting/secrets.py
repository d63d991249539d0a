"""What a job was given as secrets, and is not to be repeated in Events: these go into the status, into Kubernetes'
events and into the run folder, where others read than those who may read Secrets.

The operator says which variables and which mounted files come from Secrets. Values of fewer than 8 characters are not
looked for: they are words of any text. What a program itself prints is in its log as it printed it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from mptraining_api.launch import SECRET_PATHS, SECRET_VARIABLES

SHORTEST = 8
# So much of the beginning of a value is found, too: messages are cut off where they are long.
_BEGINNING = 16
# A Secret holds 1 MiB at most; keys and tokens are far below this.
_LARGEST_FILE = 64 * 1024
_MOST_FILES = 64
# Variables of any process, which `*` does not mean.
_NOT_MEANT = ("PATH", "HOME", "PWD", "HOSTNAME", "LANG", "PYTHONPATH", "LD_LIBRARY_PATH")
_OWN = ("MPTRAINING_", "KUBERNETES_")


class SecretValues:
    """`variables`: values by name. `paths`: files, or folders of files, that are read when they are needed."""

    def __init__(self, variables: Mapping[str, str], paths: tuple[Path, ...] = ()) -> None:
        self._variables = dict(variables)
        self._paths = paths

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> SecretValues:
        """As the launch says; none where it says nothing, as in a local run."""
        named = [name for name in environment.get(SECRET_VARIABLES, "").split(",") if name]
        found = {
            name: value
            for name, value in environment.items()
            if name != SECRET_VARIABLES and any(_means(pattern, name) for pattern in named)
        }
        return cls(found, tuple(Path(each) for each in environment.get(SECRET_PATHS, "").split(":") if each))

    def hide(self, text: str) -> str:
        """The text with the name of its source in the place of each value."""
        if not self._variables and not self._paths:
            return text
        # Longer ones first: a value may be a part of another.
        for value, source in sorted(self._values(), key=lambda each: -len(each[0])):
            text = _without(text, value, f"(the value of {source})")
        return text

    def _values(self) -> Iterator[tuple[str, str]]:
        for name, value in self._variables.items():
            yield from ((each, name) for each in _parts(value))
        for path in self._paths:
            files = sorted(path.rglob("*")) if path.is_dir() else [path]
            for file in islice((each for each in files if each.is_file()), _MOST_FILES):
                yield from ((each, str(file)) for each in _parts(_read(file)))


def _means(pattern: str, name: str) -> bool:
    if not pattern.endswith("*"):
        return pattern == name
    return name.startswith(pattern[:-1]) and name not in _NOT_MEANT and not name.startswith(_OWN)


def _read(file: Path) -> str:
    try:
        with file.open("rb") as datasets:
            return datasets.read(_LARGEST_FILE).decode("utf-8", "replace")
    except OSError:
        return ""


def _parts(value: str) -> Iterator[str]:
    """The value, its lines, and the texts in it where it is JSON, as far as they say more than a word."""
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
        # An address in a key file (an e-mail's, a server's) is what an error must name.
        texts = (each for each in _texts(document) if "@" not in each and "://" not in each)
        for each in texts:
            yield from (part for part in (each, *each.splitlines()) if len(part) >= _BEGINNING)


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict | list):
        for each in node.values() if isinstance(node, dict) else node:
            yield from _texts(each)


def _without(text: str, value: str, words: str) -> str:
    beginning = value[:_BEGINNING]
    kept, rest = [], text
    while (at := rest.find(beginning)) >= 0:
        alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(rest[at:], value, strict=False)))
        kept += [rest[:at], words]
        rest = rest[at + alike :]
    return "".join([*kept, rest])

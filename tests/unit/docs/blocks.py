"""The fenced blocks of the documents, by document and section."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]

# Every page of the guide: a new one is checked from the day it is written.
GUIDE = tuple(sorted(f"docs/guide/{path.name}" for path in (ROOT / "docs" / "guide").glob("*.md")))

EXECUTED = ("README.md", *GUIDE, "docs/results.md")

# A job to which a document's part of `spec` is added.
BASE: dict[str, Any] = {
    "apiVersion": "mptraining.dev/v1alpha1",
    "kind": "MPTrainingJob",
    "spec": {
        "accelerator": {"type": "t4"},
        "program": {"application": {"name": "cnn"}},
        "data": {"train": ["train"], "validation": ["validation"]},
    },
}

LANGUAGES = ("text", "yaml", "python", "bash")

_FILE = re.compile(r"# ([\w-]+\.(?:yaml|py))\n")

# Commands of mptj that load TensorFlow.
_TRAINS = (["run"], ["predict"], ["ensemble"])
# Commands of mptj for a worker of a running job.
_IN_A_WORKER = (["exec"], ["debug"])


@dataclass(frozen=True)
class Block:
    """One fenced block; `line` is that of its fence."""

    document: str
    section: str
    line: int
    language: str
    text: str

    @property
    def file(self) -> str | None:
        found = _FILE.match(self.text)
        return found[1] if found else None

    @property
    def is_cell(self) -> bool:
        return self.language == "python" and self.text.startswith("%")

    @property
    def commands(self) -> list[list[str]]:
        """The commands of a bash block, without comments."""
        lines = (shlex.split(line, comments=True) for line in self.text.splitlines())
        return [words for words in lines if words]

    @property
    def on_a_cluster(self) -> bool:
        if self.language != "bash":
            return False
        return any(words[0] in ("kubectl", "helm") or words[1:2] in _IN_A_WORKER for words in self.commands)

    @property
    def trains(self) -> bool:
        """Whether running it loads TensorFlow."""
        if self.language == "bash":
            return any(words[1:2] in _TRAINS for words in self.commands)
        if self.language != "python" or self.file is not None or self.is_cell:
            return False
        loads = ("import keras", "import tensorflow as tf", 'backend="local"', "run_local(")
        return any(load in self.text for load in loads)


def blocks(document: str) -> Iterator[Block]:
    section, began = "", 0
    language: str | None = None
    kept: list[str] = []
    for number, line in enumerate((ROOT / document).read_text(encoding="utf-8").splitlines(), start=1):
        if language is None and line.startswith("## "):
            section = line.removeprefix("## ")
        elif language is None and line.startswith("```"):
            language, began, kept = line.removeprefix("```"), number, []
        elif language is not None and line == "```":
            yield Block(document, section, began, language, "".join(f"{each}\n" for each in kept))
            language = None
        elif language is not None:
            kept.append(line)
    assert language is None, f"{document}:{began}: the block does not end"


def of(language: str) -> list[Any]:
    return [pytest.param(block, id=f"{block.document}:{block.line}") for block in ALL if block.language == language]


ALL = [block for document in EXECUTED for block in blocks(document)]

SECTIONS: dict[tuple[str, str], list[Block]] = {}


for _block in ALL:
    SECTIONS.setdefault((_block.document, _block.section), []).append(_block)

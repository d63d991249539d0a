"""docs/architecture.md: four walks through at most ten files each, and every path and name in it exists."""

from __future__ import annotations

import re

import pytest

from tests.unit.docs.blocks import ROOT

TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
MOST_FILES = 10
MOST_LINES = 300
_PATH = re.compile(r"`((?:api|operator|trainer|client|hack|tests|charts|manifests)/[\w/.]*\w/?)`")
_NAMED = re.compile(r"`((?:api|operator|trainer|client)/[\w/]+\.py)` `(\w+)`")


def walks() -> dict[str, list[str]]:
    """Return the files in the first column of each walk's table."""
    sections = {part.partition("\n")[0]: part for part in TEXT.split("\n## ") if part.startswith("Walk ")}
    return {title: re.findall(r"^\| `([\w/.]+)`", text, re.MULTILINE) for title, text in sections.items()}


def test_each_walk_goes_through_at_most_ten_files() -> None:
    assert len(walks()) == 4
    assert {title: len(files) for title, files in walks().items() if not 5 < len(files) <= MOST_FILES} == {}
    assert len(TEXT.splitlines()) <= MOST_LINES


@pytest.mark.parametrize("path", sorted(set(_PATH.findall(TEXT))))
def test_every_path_exists(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize(("file", "name"), sorted(set(_NAMED.findall(TEXT))))
def test_every_name_is_defined_in_its_file(file: str, name: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    assert re.search(rf"^(?:async )?(?:def|class) {name}\b", text, re.MULTILINE), f"{file} does not define {name}"


def test_ten_decisions_have_their_reasons() -> None:
    section = TEXT.split("\n## Ten decisions not to undo\n")[1].split("\n## ")[0]
    decisions = re.findall(r"^\*\*(\d+)\. [^*]+\*\* (.+)$", section, re.MULTILINE)
    assert [int(number) for number, _ in decisions] == list(range(1, 11))
    assert [number for number, reason in decisions if not re.search(r"\d", reason)] == []

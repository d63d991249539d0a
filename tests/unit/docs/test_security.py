"""docs/security.md: each line of the threat model has a test that exists; and properties of the source tree itself."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
_TEST = re.compile(r"`(test_\w+)`")
_ATTACKERS = ("user", "script", "pod", "token", "record", "board of a user", "Supply chain")
# Modules that run code that they read.
_LOADERS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
_CALLS = {"eval", "exec"}
# The shell of a notebook's cells runs the job's own program; an export reads back the archive that it wrote; a user who
# asks for the value of a function trusts the run folder of their job.
_RUNS_THE_PROGRAM = {"notebook_shell.py", "float32_model.py", "function_call.py", "function_result.py"}


def threats() -> Iterator[tuple[str, list[str]]]:
    """Return the heading and the cells of each line of the tables under Threats."""
    section = TEXT.split("\n## Threats\n")[1].split("\n## ")[0]
    for part in section.split("\n### ")[1:]:
        heading, _, body = part.partition("\n")
        rows = [line for line in body.splitlines() if line.startswith("|")]
        assert rows[0] == "| Must not get | Prevented by | Test |", heading
        for row in rows[2:]:
            yield heading, [cell.strip() for cell in row.strip("|").split(" | ")]


LINES = list(threats())


def functions(*files: Path) -> set[str]:
    """Return the names of the tests in these files."""
    return {name for file in files for name in re.findall(r"^ *def (test_\w+)", file.read_text("utf-8"), re.MULTILINE)}


@functools.cache
def all_tests() -> set[str]:
    return functions(*(ROOT / "tests").rglob("test_*.py"))


@pytest.mark.parametrize(("heading", "cells"), LINES, ids=lambda value: value if isinstance(value, str) else "")
def test_every_line_of_the_threat_model_has_its_test(heading: str, cells: list[str]) -> None:
    assert len(cells) == 3
    assert all(cells)
    (name,) = _TEST.findall(cells[2])
    assert cells[2] == f"`{name}`"
    assert name in all_tests()


def test_no_attacker_is_missing() -> None:
    headings = list(dict.fromkeys(heading for heading, _ in LINES))
    assert len(headings) == len(_ATTACKERS)
    assert all(word in heading for word, heading in zip(_ATTACKERS, headings, strict=True))


def test_tests_about_security_are_in_the_table() -> None:
    """The tests of the file that is about nothing else."""
    named = {cells[2].strip("`") for _, cells in LINES}
    assert functions(ROOT / "tests" / "apiserver" / "test_security.py") - named == set()


def loaded(tree: ast.AST) -> list[str]:
    """Return the calls in a module that may run code that it reads."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [each.name for each in node.names if each.name.partition(".")[0] in _LOADERS]
        elif isinstance(node, ast.ImportFrom):
            found += [node.module or ""] if (node.module or "").partition(".")[0] in _LOADERS else []
        elif isinstance(node, ast.Call):
            name = _dotted(node.func)
            given = {
                keyword.arg: keyword.value.value for keyword in node.keywords if isinstance(keyword.value, ast.Constant)
            }
            if (
                name in _CALLS
                or name.startswith("yaml.load")
                or name.startswith("yaml.unsafe")
                or "unsafe_deser" in name
            ):
                found.append(name)
            if given.get("allow_pickle") is True or given.get("safe_mode") is False:
                found.append(name)
    return found


def _dotted(node: ast.expr) -> str:
    """Return the name of a function; another expression than a name in it is empty: `yaml.load`, `.load`."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "")
    return ".".join(reversed(parts))


def test_no_code_is_loaded_from_data() -> None:
    found = {}
    words = re.compile("|".join([*_LOADERS, *_CALLS, "yaml", "unsafe", "allow_pickle", "safe_mode"]))
    for root in ("api", "operator", "trainer", "client"):
        for path in sorted((ROOT / root).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            calls = loaded(ast.parse(text)) if words.search(text) else []
            if calls and path.name not in _RUNS_THE_PROGRAM:
                found[path.name] = calls
    assert found == {}

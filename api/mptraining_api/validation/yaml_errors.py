"""The YAML reader's errors in plain words: TABs, indentation, quotes, brackets, and files that are no job at all."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any

from mptraining_api.problems import InvalidSpec

_JOB = re.compile(r"^(apiVersion|kind|metadata|spec)\s*:", re.MULTILINE)
_KEY = re.compile(r"\s*(?:- )?[\w.\"'-]+\s*:(?:\s|$)")
_WRITE_ONE = "`mptj init` writes a job file."


def explain(error: Exception, text: str) -> tuple[int | None, InvalidSpec]:
    """Return the line of the error, and the problem with a next step that fits it."""
    problem, mark = str(getattr(error, "problem", None) or ""), getattr(error, "problem_mark", None)
    if mark is None:
        first = str(error).strip().partition("\n")[0]
        return None, InvalidSpec("", f"not YAML: {first}", next_step="Save the file as UTF-8 text.")
    opened = getattr(error, "context_mark", None)
    if not _JOB.search(text):
        return None, not_a_job(text)
    lines = text.splitlines()
    row = min(mark.line, len(lines) - 1)
    if "'\\t'" in problem or (row < len(lines) and lines[row].lstrip(" ").startswith("\t")):
        return row + 1, InvalidSpec(
            "", "a TAB in the indentation", next_step="YAML indents with spaces; replace the TAB."
        )
    context = str(getattr(error, "context", None) or "")
    return row + 1, _explain(problem, context, lines, row, mark, opened)


def _explain(problem: str, context: str, lines: list[str], row: int, mark: Any, opened: Any) -> InvalidSpec:
    began = f"line {opened.line + 1}" if opened is not None else "a line above"
    if "quoted scalar" in context:
        mistake, step = f"a quote that opens on {began} is not closed", "Close it."
    elif "flow" in context:
        bracket = "{" if "mapping" in context else "["
        mistake = f"the {bracket!r} that opens on {began} is not closed, or a comma is missing"
        step = "Close it, or put a comma between the entries."
    elif "alias" in problem or "alias" in context or "anchor" in context:
        mistake, step = "a value begins with * or &, which YAML reserves", 'Quote it, such as "*.tfrecord".'
    elif "cannot start any token" in problem:
        character = lines[row][mark.column : mark.column + 1]
        mistake, step = f"a value begins with {character!r}, which YAML reserves", "Quote the value."
    elif "mapping values are not allowed" in problem and ": " in lines[row][: mark.column].lstrip("- "):
        mistake, step = "a second ': ' in one line", "Quote the value that contains it."
    elif "could not find expected ':'" in problem:
        at = opened.line if opened is not None else row
        mistake, step = f"no ':' after {lines[at].strip()!r}", "Write it as field: value."
    else:
        return _indentation(problem, lines, row)
    return InvalidSpec("", mistake, next_step=step)


def _indentation(problem: str, lines: list[str], row: int) -> InvalidSpec:
    above = next((number for number in range(row - 1, -1, -1) if _KEY.match(lines[number])), None)
    if above is None or not _KEY.match(lines[row]):
        return InvalidSpec("", f"not YAML: {problem}", next_step="Look at the indentation here and above.")
    return InvalidSpec(
        "",
        f"wrong indentation: {_name(lines[row])!r} is indented by {_depth(lines[row])} spaces, "
        f"{_name(lines[above])!r} on line {above + 1} by {_depth(lines[above])}",
        next_step="Indent the fields of one section by the same number of spaces.",
    )


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _name(line: str) -> str:
    return line.strip().removeprefix("- ").partition(":")[0]


def not_a_job(text: str, file: str = "") -> InvalidSpec:
    """Return the problem of a file that has none of a job's fields."""
    kind = _kind(text, PurePath(file).suffix)
    return InvalidSpec(
        "", f"this is {kind}, no job", expected="an MPTrainingJob in YAML (apiVersion, kind, metadata, spec)",
        next_step=_WRITE_ONE,
    )  # fmt: skip


def _kind(text: str, suffix: str) -> str:
    if not text.strip():
        return "an empty file"
    if suffix == ".md" or re.search(r"^(#{1,6} \S|```|\* \S)", text, re.MULTILINE):
        return "Markdown"
    if suffix == ".py" or re.search(r"^(import|from|def|class) \w", text, re.MULTILINE):
        return "Python"
    return "another kind of file"

"""Sections of CHANGELOG.md: the text of a version, and a new version's heading."""

from __future__ import annotations

import re

_NEXT = re.compile(r"^## ", re.MULTILINE)
_UNRELEASED = "## [Unreleased]\n"


def section(text: str, version: str) -> str | None:
    """Return what is below the heading of a version, or None without heading or text."""
    heading = re.search(rf"^## \[{re.escape(version)}\][^\n]*\n", text, re.MULTILINE)
    if heading is None:
        return None
    following = _NEXT.search(text, heading.end())
    found = text[heading.end() : following.start() if following else len(text)].strip()
    return found or None


def with_version(text: str, version: str, date: str) -> str:
    """Give what is unreleased the heading of a version. Raises ValueError if that exists, or nothing is unreleased."""
    if re.search(rf"^## \[{re.escape(version)}\]", text, re.MULTILINE):
        raise ValueError(f"CHANGELOG.md: it has a heading [{version}] already")
    if section(text, "Unreleased") is None:
        raise ValueError("CHANGELOG.md: nothing below `## [Unreleased]`. Describe what is new there.")
    return text.replace(_UNRELEASED, f"{_UNRELEASED}\n## [{version}] - {date}\n", 1)

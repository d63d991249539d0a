"""Hooks of MkDocs: adds the generated pages, and turns links to files outside of docs/ into links to these pages."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files  # type: ignore[import-not-found]

ROOT = Path(__file__).resolve().parents[2]
# MkDocs loads a hook as a file, without its package.
sys.path.insert(0, str(ROOT))
from tools.docs_site import pages  # noqa: E402

_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
# Markdown inside of a block of code is no link.
_CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    for name, text in pages.generated().items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page with links to files of the repository replaced by links within the site."""
    # Where the text is in the repository, which its relative links start from.
    source = pages.SOURCES.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    parts = _CODE.split(markdown)
    parts[::2] = [_LINK.sub(lambda found: _link(found, source, page.file.src_uri), part) for part in parts[::2]]
    return "".join(parts)


def _link(found: re.Match[str], source: str, page: str) -> str:
    text, link = found[1], found[2]
    if "://" in link or link.startswith(("#", "mailto:")):
        return found[0]
    path, _, anchor = link.partition("#")
    there = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if there.startswith("docs/"):
        there = there.removeprefix("docs/")
    elif (shown := pages.page_of(there)) is not None:
        there, anchor = shown[0], anchor or shown[1]
    elif (ROOT / there).exists():
        # The site shows no code, and the repository's address is not known.
        return text
    target = posixpath.relpath(there, posixpath.dirname(page) or ".")
    return f"[{text}]({target}{'#' if anchor else ''}{anchor})"

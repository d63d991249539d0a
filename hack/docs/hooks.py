"""Hooks of MkDocs: adds the generated pages, and turns links to files outside of docs/ into links to these pages."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import ConfigurationError  # type: ignore[import-not-found]
from mkdocs.plugins import event_priority  # type: ignore[import-not-found]
from mkdocs.structure.files import File, Files  # type: ignore[import-not-found]

ROOT = Path(__file__).resolve().parents[2]
# MkDocs loads a hook as a file, without its package.
sys.path.insert(0, str(ROOT))
from hack.docs import pages  # noqa: E402

_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
# The rank of a page in the search: answers before history, internals and generated lists.
_BOOST = {"guide/troubleshooting.md": 2.0, "architecture.md": 0.3, "contributing.md": 0.3, "changelog.md": 0.2}
_BOOST |= {"reference/examples.md": 0.3, "results.md": 0.5, "license.md": 0.1}
# Markdown inside of a block of code is no link.
_CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_config(config: Any) -> Any:
    """Name the repository in the header, where it is known."""
    if repository := config.extra.get("repository"):
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
            raise ConfigurationError(
                f"MPTRAINING_REPOSITORY: {repository!r}; expected OWNER/NAME of a repository on GitHub, or nothing."
            )
        config.repo_url, config.repo_name = f"{pages.GITHUB}/{repository}", repository
    return config


# Before llmstxt, which looks for the files of its patterns in the same event.
@event_priority(100)  # type: ignore[untyped-decorator]
def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    for name, text in pages.generated(config.extra.get("repository") or "").items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Return the page with links to files of the repository replaced by links within the site."""
    if page.file.src_uri in _BOOST:
        page.meta["search"] = {"boost": _BOOST[page.file.src_uri]}
    # Where the text is in the repository, which its relative links start from.
    source = pages.SOURCES.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    parts = _CODE.split(markdown)
    code = f"{config.repo_url}/blob/main" if config.repo_url else ""
    parts[::2] = [_LINK.sub(lambda match: _link(match, source, page.file.src_uri, code), part) for part in parts[::2]]
    return "".join(parts)


def _link(match: re.Match[str], source: str, page: str, code: str) -> str:
    """Return the link as it is on the page. `code`: where the files of the repository are shown, or empty."""
    text, link = match[1], match[2]
    if "://" in link or link.startswith(("#", "mailto:")):
        return match[0]
    path, _, anchor = link.partition("#")
    there = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if there.startswith("docs/"):
        there = there.removeprefix("docs/")
        # A notebook is read as a page, which has its file.
        there = pages.NOTEBOOK_PAGES.get(there, there)
    elif (shown := pages.page_of(there)) is not None:
        there, anchor = shown[0], anchor or shown[1]
    elif (ROOT / there).exists():
        # The site shows no code.
        return f"[{text}]({code}/{there}{'#' if anchor else ''}{anchor})" if code else text
    target = posixpath.relpath(there, posixpath.dirname(page) or ".")
    return f"[{text}]({target}{'#' if anchor else ''}{anchor})"

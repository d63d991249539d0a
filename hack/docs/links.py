"""`python -m hack.docs.links`: request every external link of the documents.

Exit code 1: a page answers that it is gone, is at another address, or did not answer three times.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import requests

ROOT = Path(__file__).resolve().parents[2]
# In Markdown: [text](address), <address>, and a command such as git clone in a block of code.
_LINK = re.compile(r"\]\((https?://[^)\s]+)\)|<(https?://[^>\s]+)>|git clone (https?://\S+)")
_HEADERS = {"User-Agent": "Mozilla/5.0 (mptraining: python -m hack.docs.links)"}
_TRIES, _SECONDS = 3, 20


def documents(root: Path = ROOT) -> list[Path]:
    return [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]


def links(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the address of each external link."""
    for number, line in enumerate(text.splitlines(), start=1):
        for found in _LINK.finditer(line):
            yield number, next(each for each in found.groups() if each)


def problem(address: str) -> str | None:
    """Request the address; return why the link has to be changed, None if it need not."""
    page, _, _ = address.partition("#")
    # The start of a site leads to a language or a version.
    is_start = not urlsplit(page).path.strip("/")
    failure = ""
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(2**attempt)
        try:
            with requests.get(page, headers=_HEADERS, timeout=_SECONDS, stream=True) as answer:
                if answer.ok:
                    is_moved = any(each.status_code in (301, 308) for each in answer.history)
                    is_other = answer.url.rstrip("/") != page.rstrip("/")
                    return f"moved to {answer.url}" if is_moved and is_other and not is_start else None
                failure = f"{answer.status_code} {answer.reason}"
                if answer.status_code in (404, 410):
                    return failure
        except requests.RequestException as error:
            failure = f"{type(error).__name__}: {error}"
    return failure


def main() -> int:
    places: dict[str, str] = {}
    for document in documents():
        for line, address in links(document.read_text(encoding="utf-8")):
            places.setdefault(address, f"{document.relative_to(ROOT)}:{line}")
    with ThreadPoolExecutor(8) as threads:
        problems = dict(zip(places, threads.map(problem, places), strict=True))
    for address, found in problems.items():
        if found:
            print(f"{places[address]}: {address}: {found}. Correct or remove the link.")
    bad = sum(each is not None for each in problems.values())
    print(f"{len(problems)} links, {bad} to correct")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

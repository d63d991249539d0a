"""`make site-pictures`: the main pages of the site in light, in dark and on a phone, in build/site-pictures.

For a person who changed the theme, the style sheet or a page; nothing is compared.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.server
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from tools.board_pictures import DESKTOP, PHONE, ROOT, chromium

SITE = ROOT / "build" / "site"
PICTURES = ROOT / "build" / "site-pictures"
PAGES = {
    "start": "index.html",
    "train": "guide/train.html",
    "kubernetes": "guide/kubernetes.html",
    "operate": "guide/operate.html",
    "job": "reference/mptrainingjob.html#spec-training",
    "python": "reference/python.html",
    "faq": "faq.html",
    "notebook": "notebooks/train.html",
    "search": "index.html?q=out+of+memory",
}
LOOKS = {"light": (DESKTOP, "light"), "dark": (DESKTOP, "dark"), "phone": (PHONE, "light")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(PAGES)}, or a page's path; default: all")
    names = parser.parse_args().names or list(PAGES)
    if not (SITE / "index.html").exists():
        sys.exit("no build/site: make docs")
    shutil.rmtree(PICTURES, ignore_errors=True)
    PICTURES.mkdir(parents=True)
    with served(SITE) as address, chromium() as browser:
        for look, ((width, height), scheme) in LOOKS.items():
            chosen: Any = scheme
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=chosen)
            page = context.new_page()
            for name in names:
                take(page, f"{address}/{PAGES.get(name, name)}", PICTURES / f"{name.replace('/', '-')}-{look}.png")
            context.close()


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Yield the address of a folder on loopback."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def take(page: Page, address: str, path: Path) -> None:
    # The same document with another fragment would not be loaded.
    page.goto("about:blank")
    page.goto(address)
    if "?q=" in address:
        page.locator(".md-search-result__item").first.wait_for(timeout=60_000)
    # What slides and fades in.
    page.wait_for_timeout(700)
    page.screenshot(path=path)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()

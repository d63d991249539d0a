"""Chromium, driven by Playwright, with pages that fail their test on any console error or violation of the CSP."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.left_out import leave_out
from tests.testbed.run_folders import RunFolder, Story, flowers, write_story
from tests.testbed.served_board import Served, start_board

# A change must be seen after 2 s; a busy machine draws it later.
SEEN = 15_000


@dataclass
class Opened:
    """A page of the board in the browser. `allowed` are parts of console errors that the test expects."""

    page: Page
    origin: str
    allowed: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def go(self, fragment: str) -> None:
        self.page.evaluate("to => { location.hash = to }", fragment)

    def open_run(self, name: str) -> None:
        self.go("#/runs")
        self.page.get_by_role("link", name=name, exact=True).click()
        self.page.get_by_role("heading", name=name, exact=True).wait_for()

    def names(self) -> list[str]:
        """Return the names in the table of runs, in its order."""
        return self.page.locator("tr[data-run] th.name a").all_inner_texts()

    def chart(self, title: str) -> Any:
        return self.page.locator("figure.chart", has=self.page.locator(f".chart-title:text-is('{title}')"))

    def drawn(self, title: str) -> Any:
        """Return the chart once it has points."""
        chart = self.chart(title)
        chart.scroll_into_view_if_needed()
        self.page.wait_for_function("figure => Number(figure.dataset.points) > 0", arg=chart.element_handle())
        return chart


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    if path is None:
        leave_out("no chromium: run `make chromium`, or install Debian's package chromium")
    # Chromium's own sandbox refuses to run as root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=arguments)
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Opened]]:
    """Return a function that opens a URL in a browser profile of its own; options are Playwright's of a context."""
    contexts: list[tuple[BrowserContext, Opened]] = []

    def start(url: str, **options: Any) -> Opened:
        context = browser.new_context(viewport=options.pop("viewport", {"width": 1280, "height": 800}), **options)
        context.set_default_timeout(SEEN)
        context.add_init_script(
            "addEventListener('securitypolicyviolation', e => console.error('CSP', e.violatedDirective, e.blockedURI))"
        )
        opened = Opened(context.new_page(), url.partition("/?")[0])
        opened.page.on("console", lambda each: opened.errors.append(each.text) if each.type == "error" else None)
        opened.page.on("pageerror", lambda error: opened.errors.append(str(error)))
        contexts.append((context, opened))
        opened.page.goto(url)
        return opened

    yield start
    unexpected = []
    for context, opened in contexts:
        unexpected += [each for each in opened.errors if not any(part in each for part in opened.allowed)]
        context.close()
    assert unexpected == []


@pytest.fixture
def serve_board() -> Iterator[Callable[..., Served]]:
    """Return `start_board` for one folder; what it serves stops when the test ends."""
    started: list[Served] = []

    def start(folder: Path, port: int = 0) -> Served:
        started.append(start_board(folder, port=port))
        return started[-1]

    yield start
    for each in started:
        each.stop()


@pytest.fixture(scope="session")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve finished runs and an unfinished one; nothing writes to them."""
    folder = tmp_path_factory.mktemp("runs")
    begin = time.time() - 90_000
    for index, story in enumerate(flowers()):
        write_story(folder / story.name, story, start=begin + 3000 * index, every=60)
    write_story(folder / "unfinished", Story("unfinished", ends="", at=1300), start=begin, every=60)
    return folder


@pytest.fixture(scope="session")
def served_stories(stories: Path) -> Iterator[Served]:
    served = start_board(stories)
    yield served
    served.stop()


@pytest.fixture
def board(served_stories: Served, open_page: Callable[..., Opened]) -> Callable[..., Opened]:
    """Return a function that opens the board over `stories`."""

    def start(**options: Any) -> Opened:
        opened = open_page(served_stories.address, **options)
        opened.page.locator("tr[data-run]").first.wait_for()
        return opened

    return start


@pytest.fixture
def training(tmp_path: Path) -> RunFolder:
    """A run that has trained 300 of 3,600 steps and may be continued by the test."""
    (tmp_path / "runs").mkdir()
    run = RunFolder(tmp_path / "runs" / "training", Story("training", step_seconds=0.2), start=time.time() - 70)
    run.begin()
    run.advance(300)
    return run


def picture(chart: Any) -> str:
    """Return what a chart's canvas shows."""
    return str(chart.locator("canvas").evaluate("canvas => canvas.toDataURL()"))


def wait_for_another_picture(opened: Opened, chart: Any, before: str) -> None:
    opened.page.wait_for_function(
        "([figure, before]) => figure.querySelector('canvas')?.toDataURL() !== before",
        arg=[chart.element_handle(), before],
    )

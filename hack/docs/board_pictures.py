"""`python -m hack.docs.board_pictures`: the pictures of `mptj board` in docs/pictures, taken in Chromium.

Runs with a story are written for them; two pictures are of real ones: the demo's two runs (`make demo` first), and its
job while it trains.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from mptraining.sweeps.folder import SweepFolder
from tests.testbed.run_folders import RunFolder, Story, flowers, write_story
from tests.testbed.sweep_folders import write_sweep

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"
DEMO = ROOT / "build" / "demo"
DESKTOP, PHONE = (1280, 800), (390, 844)
# The folder of a run as a reader would have it.
_WHERE = """for (const each of document.querySelectorAll('.where code'))
  each.textContent = `runs/${each.textContent.split('/').at(-1)}`"""


@dataclass(frozen=True, slots=True)
class Picture:
    """`name`.png shows `fragment` of the board over `runs`: stories, sweep, demo or training.

    `act` comes before the shot.
    """

    name: str
    runs: str
    fragment: str
    size: tuple[int, int] = DESKTOP
    scheme: str = "light"
    act: Callable[[Page], None] = field(default=lambda page: None)


def open_run(name: str) -> Callable[[Page], None]:
    def act(page: Page) -> None:
        page.get_by_role("link", name=name, exact=True).click()
        page.locator("figure.chart[data-points]").first.wait_for()

    return act


def open_sweep(page: Page) -> None:
    page.get_by_role("link", name="digits", exact=True).click()
    page.locator("svg.matrix").wait_for()


def hover(page: Page) -> None:
    area = page.locator("figure.chart .u-over").nth(1)
    box = area.bounding_box()
    assert box
    area.hover(position={"x": box["width"] * 0.55, "y": box["height"] * 0.7})


def choose(page: Page, *names: str) -> None:
    for name in names:
        page.get_by_role("checkbox", name=f"Select {name}", exact=True).check()


TAKEN = (
    Picture("board-runs", "stories", "#/runs", act=lambda page: choose(page, "fp16-xla", "float32-xla")),
    Picture("board-compare", "stories", "#/compare", act=hover),
    Picture("board-scatter", "stories", "#/compare?tab=scatter"),
    Picture("board-parallel", "stories", "#/compare?tab=parallel", scheme="dark"),
    Picture("board-speed", "stories", "#/compare?tab=speed"),
    Picture("board-run", "stories", "#/runs", act=open_run("fp16-resumed")),
    Picture("board-diverged", "stories", "#/runs", scheme="dark", act=open_run("fp16-lr-1e-1")),
    Picture("board-phone", "stories", "#/runs", size=PHONE, scheme="dark", act=open_run("fp16-on-spot")),
    Picture("board-sweep", "sweep", "#/sweeps", size=(1280, 1500), act=open_sweep),
    Picture("board-demo", "demo", "#/compare"),
    Picture("board-training", "training", "#/runs", act=open_run("training")),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="pictures to take; default: all")
    wanted = parser.parse_args().names or [each.name for each in TAKEN]
    chosen = [each for each in TAKEN if each.name in wanted]
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        for runs in dict.fromkeys(each.runs for each in chosen):
            with places(runs, Path(folder)) as shown, board(shown) as address:
                for picture in chosen:
                    if picture.runs == runs:
                        take(browser, address, picture)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Yield Debian's Chromium."""
    path = shutil.which("chromium")
    if path is None:
        sys.exit("no chromium: make chromium")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def places(runs: str, folder: Path) -> Iterator[list[Path]]:
    """Yield the folders that the board shows; a training job runs until they are no longer needed."""
    if runs == "stories":
        yield [stories(folder / "flowers")]
    elif runs == "sweep":
        shown = sweep(folder / "runs" / "digits")
        with SweepFolder(shown / "digits").lock():
            yield [shown]
    elif not (DEMO / "digits-float32.yaml").exists():
        sys.exit("no build/demo: make demo")
    elif runs == "demo":
        yield [DEMO / "float32", DEMO / "mixed_bfloat16"]
    else:
        output = folder / "training"
        command = [sys.executable, "-m", "mptraining", "run", str(DEMO / "digits-float32.yaml"), "--local"]
        with subprocess.Popen([*command, "--output", str(output)], stdout=subprocess.DEVNULL) as job:
            try:
                wait_until(lambda: any(b'"val_loss"' in each.read_bytes() for each in output.glob("events/*.jsonl")))
                yield [output]
            finally:
                job.terminate()


def stories(folder: Path) -> Path:
    """Write twelve runs that ended, and one that is under way."""
    now = time.time()
    for index, story in enumerate(flowers()):
        write_story(folder / story.name, story, start=now - 4 * 3600 + 1080 * index)
    run = RunFolder(folder / "fp16-on-spot", Story("fp16-on-spot", step_seconds=0.19), start=now - 0.19 * 2300)
    run.begin()
    run.advance(2300)
    return folder


def sweep(folder: Path) -> Path:
    """Write a sweep of 24 trials with their runs, two of which are under way; return the folder above it."""
    begin = time.time() - 3000
    for number in range(1, 23):
        write_story(folder / "trials" / str(number), Story(f"digits-{number}"), start=begin, every=300)
    write_sweep(folder, start=begin, running=(23, 24))
    return folder.parent


@contextlib.contextmanager
def board(shown: list[Path]) -> Iterator[str]:
    """Yield the address of a board over the folders."""
    command = [sys.executable, "-m", "mptraining", "board", *map(str, shown), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        try:
            yield server.stdout.readline().removeprefix("board: ").strip()
        finally:
            server.terminate()


def take(browser: Browser, address: str, picture: Picture) -> None:
    width, height = picture.size
    scheme: Any = picture.scheme
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    page.goto(address)
    # The first answer has no best values yet; they follow as a change.
    page.get_by_text("best validation", exact=False).first.wait_for(state="attached")
    page.evaluate("to => { location.hash = to }", picture.fragment)
    page.wait_for_timeout(1500)
    picture.act(page)
    page.wait_for_timeout(1500)
    page.evaluate(_WHERE)
    shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    context.close()
    PICTURES.mkdir(exist_ok=True)
    path = PICTURES / f"{picture.name}.png"
    with_palette(shot).save(path, optimize=True)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1000} kB")


def with_palette(shot: Image.Image) -> Image.Image:
    """Return the picture in its 256 most frequent colours: a third of the size, and pale greys stay as they are."""
    counted: Any = shot.getcolors(shot.width * shot.height)
    palette = Image.new("P", (1, 1))
    palette.putpalette([channel for _, colour in sorted(counted, reverse=True)[:256] for channel in colour])
    return shot.quantize(palette=palette, dither=Image.Dither.NONE)


def wait_until(true: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            sys.exit("the demo's job did not begin to train within 5 minutes")
        time.sleep(0.5)


if __name__ == "__main__":
    main()

"""The pages of sweeps in a real browser."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.e2e.browser.conftest import SEEN, Opened, Served
from tests.testbed.run_folders import Story, write_story
from tests.testbed.sweep_folders import write_sweep


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A sweep of 24 trials, of which two run; the first has a run folder."""
    folder = tmp_path / "runs" / "digits"
    begin = time.time() - 3000
    write_sweep(folder, start=begin, running=(23, 24))
    write_story(folder / "trials" / "1", Story("digits-1"), start=begin, every=60)
    return folder


def open_sweep(opened: Opened, name: str = "digits") -> None:
    opened.go("#/sweeps")
    opened.page.get_by_role("link", name=name, exact=True).click()
    opened.page.get_by_role("heading", name=name, exact=True).wait_for()


def test_the_page_of_a_sweep_shows_its_best_its_plots_and_its_trials(
    sweep: Path, serve_board: Callable[..., Served], open_page: Callable[..., Opened]
) -> None:
    opened = open_page(serve_board(sweep.parent).address)
    open_sweep(opened)
    page = opened.page
    expect(page.locator(".facts")).to_contain_text("22 of 30 (2 running, 1 failed)")
    # No driver holds the folder.
    expect(page.locator(".run-title .badge")).to_have_text("Interrupted")
    expect(page.locator("figure[data-points]")).to_have_attribute("data-points", "21")
    expect(page.locator(".parallel-line")).to_have_count(21)
    expect(page.locator(".scatter .dot")).to_have_count(21)
    rows = page.locator("table.trials tbody tr")
    expect(rows).to_have_count(24)
    objectives = [float(text) for text in rows.locator("td:nth-child(3)").all_inner_texts()[:21]]
    assert objectives == sorted(objectives, reverse=True)
    page.get_by_role("button", name="trial", exact=True).click()
    expect(rows.first).to_contain_text("trial 1")
    # It needs Optuna, which is imported then, and comes after the page.
    expect(page.locator("h2", has_text="Importance")).to_be_visible(timeout=2 * SEEN)
    expect(page.locator("table.trials a")).to_have_count(1)
    page.locator("table.trials a").click()
    expect(page.get_by_role("heading", name="digits/trials/1")).to_be_visible()


def test_a_range_on_an_axis_of_the_parallel_coordinates_keeps_the_trials_in_it(
    sweep: Path, serve_board: Callable[..., Served], open_page: Callable[..., Opened]
) -> None:
    opened = open_page(serve_board(sweep.parent).address)
    open_sweep(opened)
    axis = opened.page.locator("svg g", has_text="learning_rate").locator(".axis-reach")
    axis.scroll_into_view_if_needed()
    area = axis.bounding_box()
    middle = area["x"] + area["width"] / 2
    opened.page.mouse.move(middle, area["y"] + 2)
    opened.page.mouse.down()
    opened.page.mouse.move(middle, area["y"] + 0.3 * area["height"], steps=3)
    opened.page.mouse.up()
    kept = opened.page.locator(".parallel > [role=status]")
    expect(kept).to_contain_text("of 21: trial")
    assert opened.page.locator(".parallel-line.outside").count() > 5
    axis.click()
    expect(kept).to_have_text("")


def test_a_trial_that_ends_appears_without_a_reload(
    sweep: Path, serve_board: Callable[..., Served], open_page: Callable[..., Opened]
) -> None:
    opened = open_page(serve_board(sweep.parent).address)
    open_sweep(opened)
    opened.page.evaluate("window.sameDocument = true")
    write_sweep(sweep, start=time.time() - 3000, count=26, running=(26,))
    expect(opened.page.locator(".facts")).to_contain_text("25 of 30", timeout=SEEN)
    expect(opened.page.locator("figure[data-points]")).to_have_attribute("data-points", "24")
    assert opened.page.evaluate("window.sameDocument") is True


def test_a_board_without_sweeps_says_how_to_run_one(board: Callable[..., Opened]) -> None:
    opened = board()
    opened.go("#/sweeps")
    expect(opened.page.locator("code", has_text="mptj run sweep.yaml")).to_be_visible()

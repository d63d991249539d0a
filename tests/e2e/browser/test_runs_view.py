"""The table of runs in a real browser: filter, order, selection, and changes without a reload."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import expect

from tests.e2e.browser.conftest import Opened, Served
from tests.testbed.run_folders import RunFolder, Story


def test_a_filter_takes_words_expressions_and_conditions(board: Callable[..., Opened]) -> None:
    opened = board()
    filter_field = opened.page.get_by_role("searchbox")
    assert len(opened.names()) == 13
    filter_field.fill("float32 off")
    expect(opened.page.locator("#count")).to_have_text("1 of 13 runs")
    assert opened.names() == ["float32"]
    filter_field.fill("/^fp16-lr-1e-[24]/")
    expect(opened.page.locator("#count")).to_have_text("2 of 13 runs")
    assert sorted(opened.names()) == ["fp16-lr-1e-2", "fp16-lr-1e-4"]
    filter_field.fill("policy=mixed_float16 learningrate>0.05 seed=7")
    expect(opened.page.locator("#count")).to_have_text("2 of 13 runs")
    assert sorted(opened.names()) == ["fp16-lr-1e-1", "fp16-sgd"]
    filter_field.fill("/(/")
    expect(opened.page.locator("#filter-problem")).to_contain_text("not a regular expression")
    filter_field.fill("no-such-run")
    opened.page.get_by_role("button", name="Clear the filter").click()
    expect(opened.page.locator("#count")).to_have_text("13 runs")


def test_a_click_on_a_title_sorts_and_a_second_one_reverses(board: Callable[..., Opened]) -> None:
    opened = board()
    title = opened.page.get_by_role("button", name="total time")
    title.click()
    expect(opened.page.locator("th[aria-sort=ascending]")).to_contain_text("total time")
    fastest = opened.names()
    title.click()
    expect(opened.page.locator("th[aria-sort=descending]")).to_contain_text("total time")
    assert opened.names()[0] == fastest[-1] == "float32"
    assert set(fastest[:2]) == {"unfinished", "fp16-lr-1e-1"}


def test_a_run_appears_and_advances_without_a_reload_and_keeps_the_readers_choices(
    training: RunFolder, serve_board: Callable[..., Served], open_page: Callable[..., Opened]
) -> None:
    opened = open_page(serve_board(training.folder.parent).address)
    row = opened.page.locator("tr[data-run]", has_text="training")
    row.wait_for()
    opened.page.get_by_role("button", name="run", exact=True).click()
    opened.page.get_by_role("checkbox", name="Select training").check()
    opened.page.evaluate("window.sameDocument = true")
    second = RunFolder(training.folder.parent / "another", Story("another", step_seconds=0.2), start=time.time() - 30)
    second.begin()
    second.advance(100)
    expect(opened.page.locator("tr[data-run]")).to_have_count(2)
    expect(row.locator(".progress-text")).to_contain_text("8%")
    training.advance(1800)
    expect(row.locator(".progress-text")).to_contain_text("50%")
    assert opened.names() == ["another", "training"], "still sorted by name"
    expect(opened.page.get_by_role("checkbox", name="Select training")).to_be_checked()
    assert opened.page.evaluate("window.sameDocument") is True


def test_an_empty_folder_says_what_to_do(
    tmp_path: Path, serve_board: Callable[..., Served], open_page: Callable[..., Opened]
) -> None:
    opened = open_page(serve_board(tmp_path).address)
    expect(opened.page.get_by_role("heading", name="No runs yet")).to_be_visible()
    expect(opened.page.get_by_text("mptj run job.yaml")).to_be_visible()


def test_two_hundred_runs_have_different_colours(board: Callable[..., Opened]) -> None:
    colours = board().page.evaluate(
        "async () => { const { runColour } = await import('/static/format.js');"
        " return [false, true].map(dark => new Set(Array.from({ length: 200 }, (_, at) => runColour(at, dark))).size) }"
    )
    assert colours == [200, 200]

"""Curves, scatter and the page of a run in a real browser."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import expect

from mptraining.board.sources import folder_source
from mptraining.board.state import Board
from mptraining.board.static_page import write_page
from tests.e2e.browser.conftest import Opened, Served, picture, wait_for_another_picture
from tests.testbed.board_runs import write_run
from tests.testbed.run_folders import RunFolder


def test_dragging_zooms_all_charts_and_reset_shows_everything(board: Callable[..., Opened]) -> None:
    opened = board()
    opened.go("#/compare")
    loss, accuracy = opened.drawn("loss"), opened.drawn("accuracy")
    before = picture(accuracy)
    area = loss.locator(".u-over").bounding_box()
    opened.page.mouse.move(area["x"] + 0.5 * area["width"], area["y"] + 60)
    opened.page.mouse.down()
    opened.page.mouse.move(area["x"] + 0.6 * area["width"], area["y"] + 60, steps=4)
    with opened.page.expect_response(lambda answer: "from=" in answer.url):
        opened.page.mouse.up()
    reset = opened.page.get_by_role("button", name="Reset zoom")
    wait_for_another_picture(opened, accuracy, before)
    reset.click()
    expect(reset).to_be_hidden()


def test_one_cursor_shows_the_values_of_all_charts(board: Callable[..., Opened]) -> None:
    opened = board()
    opened.go("#/compare")
    loss = opened.drawn("loss")
    opened.drawn("accuracy")
    loss.scroll_into_view_if_needed()
    loss.locator(".u-over").hover()
    expect(loss.locator(".readout .row b").first).not_to_be_empty()
    expect(opened.chart("accuracy").locator(".cursor-line")).to_be_visible()
    expect(opened.page.locator(".legend li.near")).to_have_count(1)


def test_a_diverged_run_does_not_flatten_the_others(board: Callable[..., Opened]) -> None:
    opened = board()
    opened.go("#/compare")
    loss = opened.drawn("loss")
    expect(loss.locator(".chart-note")).to_contain_text("outside (farthest: 1.")
    opened.page.get_by_label("cut outliers").uncheck()
    expect(loss.locator(".chart-note")).not_to_contain_text("outside")


def test_smoothing_and_axes_change_the_curves(board: Callable[..., Opened]) -> None:
    opened = board()
    opened.open_run("fp16-xla")
    loss = opened.drawn("loss")
    rough = picture(loss)
    opened.page.get_by_label("Smoothing").fill("0.9")
    wait_for_another_picture(opened, loss, rough)
    opened.page.get_by_role("button", name="linear").click()
    expect(loss.locator(".chart-note")).to_have_text("")
    opened.page.get_by_role("button", name="log", exact=True).click()
    expect(loss.locator(".chart-note")).to_contain_text("logarithmic axis")
    with opened.page.expect_response(lambda answer: "x=seconds" in answer.url):
        opened.page.get_by_role("button", name="time", exact=True).click()


def test_the_exported_page_smooths_the_same_curve(
    tmp_path: Path, serve_board: Callable[..., Served], open_page: Callable[..., Opened]
) -> None:
    """Of 5,000 points both draw 1,200 at most; each of these counts for those that were left out before it."""
    write_run(tmp_path / "runs" / "long", 0, 5000, random.Random(0))
    page = write_page(tmp_path / "page.html", Board([folder_source(str(tmp_path / "runs"))]))
    smooth = []
    for url in (serve_board(tmp_path / "runs").address, page.as_uri()):
        opened = open_page(url)
        opened.open_run("long")
        loss = opened.drawn("loss")
        rough = loss.get_attribute("aria-label")
        opened.page.get_by_label("Smoothing").fill("0.9")
        expect(loss).not_to_have_attribute("aria-label", rough)
        smooth.append(loss.get_attribute("aria-label"))
    assert smooth[0] == smooth[1]
    # The moving average of all 5,000 points, as TensorBoard draws it, is close to that of the 1,200.
    (run,) = Board([folder_source(str(tmp_path / "runs"))]).sources
    run.refresh()
    (reader,) = run.runs().values()
    average = 0.0
    for value in reader.curves().series("loss")[1]:
        average = 0.9 * average + 0.1 * value
    shown = float(smooth[0].split("loss ends at ")[1].split(",")[0])
    assert abs(shown / average - 1) < 0.03


def test_time_against_loss_is_one_click_away(board: Callable[..., Opened]) -> None:
    opened = board()
    opened.go("#/compare")
    opened.page.get_by_role("button", name="Scatter").click()
    across, upwards = opened.page.get_by_label("Across"), opened.page.get_by_label("Upwards")
    expect(across).to_have_value("totalSeconds")
    expect(upwards).to_have_value("last:val_loss")
    assert opened.page.locator("svg a.dot").count() >= 12
    across.select_option("learningRate")
    expect(opened.page.locator("text.axis", has_text="learning rate (logarithmic)")).to_be_visible()
    assert "x=learningRate" in opened.page.url, "the address can be shared"
    opened.page.reload()
    expect(across).to_have_value("learningRate")
    opened.page.locator("svg a.dot", has_text="fp16-sgd").click()
    expect(opened.page.get_by_role("heading", name="fp16-sgd")).to_be_visible()


def test_a_run_shows_its_story(board: Callable[..., Opened]) -> None:
    opened = board()
    opened.open_run("fp16-resumed")
    attempts = opened.page.get_by_role("region", name="Attempts").get_by_role("row")
    expect(attempts).to_have_count(3)
    expect(attempts.nth(1)).to_contain_text("Preempted")
    opened.drawn("GPU utilization")
    expect(opened.page.locator("#decisions")).to_contain_text("one worker with 2 devices")
    expect(opened.page.locator("#events")).to_contain_text("checkpoint of step")
    opened.open_run("fp16-lr-1e-1")
    expect(opened.page.get_by_role("note")).to_contain_text("layer 'conv4_block2_out'")


def test_what_the_program_prints_appears_while_it_trains(
    training: RunFolder, serve_board: Callable[..., Served], open_page: Callable[..., Opened]
) -> None:
    opened = open_page(serve_board(training.folder.parent).address)
    opened.open_run("training")
    log = opened.page.locator(".log")
    expect(log).to_contain_text("epoch 1/12")
    (file,) = (training.folder / "logs").iterdir()
    with file.open("a") as appended:
        appended.write("\x1b[31mhello\x1b[0m from the program\n 10%\r100%\n")
    training.advance(400)
    expect(log).to_contain_text("hello from the program\n100%")
    (training.folder / "logs" / "1-1.log").write_text("the second worker\n")
    training.advance(420)
    opened.page.get_by_role("button", name="1-1 (").click()
    expect(log).to_have_text("the second worker\n")

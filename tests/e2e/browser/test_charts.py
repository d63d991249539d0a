"""Curves, scatter, parallel coordinates and differences in a real browser."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import expect

from tests.e2e.browser.conftest import Opened, picture, wait_for_another_picture


def test_dragging_zooms_all_charts_and_reset_shows_everything(board: Callable[..., Opened]) -> None:
    opened = board()
    opened.go("#/compare")
    loss, accuracy = opened.drawn("loss"), opened.drawn("accuracy")
    before = picture(accuracy)
    area = loss.locator(".u-over").bounding_box()
    opened.page.mouse.move(area["x"] + 0.5 * area["width"], area["y"] + 60)
    opened.page.mouse.down()
    opened.page.mouse.move(area["x"] + 0.6 * area["width"], area["y"] + 60, steps=4)
    opened.page.mouse.up()
    reset = opened.page.get_by_role("button", name="Reset zoom")
    expect(reset).to_be_visible()
    assert picture(accuracy) != before
    reset.click()
    expect(reset).to_be_hidden()


def test_one_cursor_shows_the_values_of_all_charts(board: Callable[..., Opened]) -> None:
    opened = board()
    opened.go("#/compare")
    loss = opened.drawn("loss")
    opened.drawn("accuracy")
    loss.scroll_into_view_if_needed()
    loss.locator(".u-over").hover()
    expect(loss.locator(".readout")).to_be_visible()
    expect(loss.locator(".readout .row b").first).not_to_be_empty()
    expect(opened.chart("accuracy").locator(".cursor-line")).to_be_visible()


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


def test_time_against_loss_is_one_click_away(board: Callable[..., Opened]) -> None:
    opened = board()
    opened.go("#/compare")
    opened.page.get_by_role("button", name="Scatter").click()
    expect(opened.page.get_by_role("button", name="total time against last validation loss")).to_have_attribute(
        "aria-pressed", "true"
    )
    assert opened.page.locator("svg a.dot").count() >= 12
    opened.page.get_by_label("Across").select_option("learningRate")
    expect(opened.page.get_by_label("learning rate", exact=False).first).to_be_visible()
    assert "x=learningRate" in opened.page.url, "the address can be shared"
    opened.page.reload()
    expect(opened.page.get_by_label("Across")).to_have_value("learningRate")
    opened.page.locator("svg a.dot", has_text="fp16-sgd").click()
    expect(opened.page.get_by_role("heading", name="fp16-sgd")).to_be_visible()


def test_a_range_on_an_axis_of_the_parallel_coordinates_keeps_the_runs_in_it(board: Callable[..., Opened]) -> None:
    opened = board()
    opened.go("#/compare?tab=parallel")
    axis = opened.page.locator("svg g", has_text="learning rate").locator(".axis-reach")
    area = axis.bounding_box()
    middle = area["x"] + area["width"] / 2
    opened.page.mouse.move(middle, area["y"] + 2)
    opened.page.mouse.down()
    opened.page.mouse.move(middle, area["y"] + 0.3 * area["height"], steps=3)
    opened.page.mouse.up()
    told = opened.page.locator(".parallel > [role=status]")
    expect(told).to_contain_text("of 13 runs: ")
    assert opened.page.locator(".parallel-line.outside").count() > 5
    axis.click()
    expect(told).to_have_text("")


def test_differences_and_speed_against_the_float32_twin(board: Callable[..., Opened]) -> None:
    opened = board()
    for name in ("fp16-xla", "float32-xla"):
        opened.page.get_by_role("checkbox", name=f"Select {name}", exact=True).check()
    opened.page.get_by_role("link", name="Compare 2 selected").click()
    opened.page.get_by_role("button", name="Differences").click()
    table = opened.page.locator(".differences table")
    expect(table).to_contain_text("precision.policy")
    expect(table).not_to_contain_text("training.epochs")
    opened.page.get_by_role("button", name="Speed").click()
    row = opened.page.locator(".speed tr", has_text="fp16-xla").first
    expect(row).to_contain_text("2.06")
    expect(row).to_contain_text("106% faster")


def test_a_run_shows_its_story(board: Callable[..., Opened]) -> None:
    opened = board()
    opened.open_run("fp16-resumed")
    line = opened.page.get_by_role("region", name="Attempts")
    expect(line).to_contain_text("2 attempts")
    expect(line).to_contain_text("Preempted")
    expect(line).to_contain_text("goodput")
    opened.drawn("GPU utilization")
    expect(opened.page.locator("#decisions")).to_contain_text("one host with 2 devices")
    opened.page.locator("#checkpoints summary").click()
    expect(opened.page.locator("#checkpoints")).to_contain_text("285 MB")
    opened.open_run("fp16-lr-1e-1")
    expect(opened.page.locator(".divergence")).to_contain_text("in layer conv4_block2_out at step 640")

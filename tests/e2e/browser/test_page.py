"""The page as a whole in a real browser: dark, narrow, by keyboard, without server or token, and from a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect

from mptraining.board.sources import folder_source
from mptraining.board.state import Board
from mptraining.board.static_page import write_page
from tests.e2e.browser.conftest import Opened, Served
from tests.testbed.run_folders import RunFolder

# WCAG's definition, over what is visible.
_CONTRAST = """selector => {
  const luminance = colour => colour.match(/[\\d.]+/g).slice(0, 3).map(c => c / 255)
    .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = node => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if (!/, 0\\)|transparent/.test(colour)) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const contrast = node => {
    const [a, b] = [luminance(getComputedStyle(node).color), luminance(behind(node))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  const all = [...document.querySelectorAll(selector)];
  const shown = all.filter(node => node.checkVisibility() && node.innerText.trim());
  return Math.min(...shown.map(contrast));
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_the_contrast_of_wcag_aa(board: Callable[..., Opened], scheme: str) -> None:
    opened = board(color_scheme=scheme)
    paper = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") is (scheme == "light")
    texts = "td, th, th a, button, .badge, .count, .progress-text, .outcome, #views a, a.button"
    assert opened.page.evaluate(_CONTRAST, texts) >= 4.5
    opened.open_run("fp16-resumed")
    assert opened.page.evaluate(_CONTRAST, "dt, dd, p, h1, h2, h3, li, .chart-title, .badge, summary") >= 4.5


def test_the_reader_can_choose_dark(board: Callable[..., Opened]) -> None:
    opened = board(color_scheme="light")
    opened.page.keyboard.press("d")
    expect(opened.page.locator("#theme")).to_contain_text("Dark")
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    opened.page.reload()
    expect(opened.page.locator("#theme")).to_contain_text("Dark")


def test_nothing_is_wider_than_a_phone(board: Callable[..., Opened]) -> None:
    opened = board(viewport={"width": 390, "height": 844}, has_touch=True)
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    for fragment, seen in (
        ("#/runs", "tr[data-run]"),
        ("#/compare", ".chart canvas"),
        ("#/compare?tab=scatter", ".dot"),
    ):
        opened.go(fragment)
        opened.page.locator(seen).first.wait_for()
        assert opened.page.evaluate(overflow) <= 0, fragment
    opened.open_run("fp16-lr-1e-1")
    loss = opened.drawn("loss")
    assert opened.page.evaluate(overflow) <= 0
    loss.locator(".u-over").tap()
    expect(loss.locator(".readout")).to_be_visible()


def test_everything_is_reached_by_keyboard(board: Callable[..., Opened]) -> None:
    opened = board()
    press = opened.page.keyboard.press
    press("/")
    expect(opened.page.get_by_role("searchbox")).to_be_focused()
    opened.page.keyboard.type("fp16-lr")
    expect(opened.page.locator("tr[data-run]")).to_have_count(4)
    press("Escape")
    press("?")
    expect(opened.page.get_by_role("dialog", name="Keys")).to_be_visible()
    press("Escape")
    expect(opened.page.get_by_role("dialog", name="Keys")).to_be_hidden()
    first, second = opened.page.locator("tr[data-run] a").all()[:2]
    first.focus()
    press("ArrowDown")
    expect(second).to_be_focused()
    press("Space")
    expect(opened.page.locator("tr[data-run]").nth(1).get_by_role("checkbox")).to_be_checked()
    press("k")
    press("x")
    press("c")
    expect(opened.page.get_by_role("heading", name="Compare 2 runs")).to_be_visible()
    loss = opened.drawn("loss")
    loss.focus()
    assert loss.evaluate("node => getComputedStyle(node).outlineStyle") != "none"
    press("ArrowRight")
    expect(loss.locator(".readout")).to_be_visible()
    press("+")
    expect(opened.page.get_by_role("button", name="Reset zoom")).to_be_visible()
    press("0")
    expect(opened.page.get_by_role("button", name="Reset zoom")).to_be_hidden()
    press("g")
    opened.page.locator("tr[data-run] a").first.focus()
    press("Enter")
    expect(opened.page.get_by_role("heading", name="Curves")).to_be_visible()


def test_a_stopped_server_is_reported_and_the_page_reconnects(
    training: RunFolder, serve_board: Callable[..., Served], open_page: Callable[..., Opened]
) -> None:
    served = serve_board(training.folder.parent)
    opened = open_page(served.address)
    opened.allowed = ["Failed to load resource", "net::ERR"]
    expect(opened.page.locator("#connection")).to_have_text("live")
    opened.page.locator("tr[data-run]").wait_for()
    served.stop()
    expect(opened.page.locator("#notice")).to_contain_text("has stopped or cannot be reached")
    expect(opened.page.locator("tr[data-run]")).to_have_count(1)
    training.advance(1800)
    serve_board(training.folder.parent, port=served.port)
    expect(opened.page.locator("#connection")).to_have_text("live")
    expect(opened.page.locator("#notice")).to_be_hidden()
    expect(opened.page.locator(".progress-text")).to_contain_text("50%")


def test_an_exported_page_needs_no_server(stories: Path, tmp_path: Path, open_page: Callable[..., Opened]) -> None:
    page = write_page(tmp_path / "page.html", Board([folder_source(str(stories))]))
    opened = open_page(page.as_uri())
    requests: list[str] = []
    opened.page.on("request", lambda request: requests.append(request.url))
    opened.page.locator("tr[data-run]").first.wait_for()
    expect(opened.page.locator("#connection")).to_have_text("exported page")
    assert len(opened.names()) == 13
    opened.go("#/compare")
    opened.drawn("loss")
    opened.page.get_by_role("button", name="Scatter").click()
    expect(opened.page.locator("svg a.dot")).to_have_count(13)
    opened.open_run("fp16-resumed")
    expect(opened.page.locator(".log")).to_contain_text("epoch 12/12")
    assert [each for each in requests if not each.startswith(("file:", "data:"))] == []


def test_a_waiting_job_is_a_section_of_its_runs_page(board: Callable[..., Opened]) -> None:
    opened = board()
    why = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. Wait, or ask for another accelerator."
    event = {"time": 1_790_000_000, "type": "Warning", "reason": "FailedScheduling", "message": "no"}
    job = {
        "phase": "Pending",
        "state": "Waiting",
        "why": why,
        "conditions": [{"type": "Running", "status": "False", "reason": "Unschedulable", "message": "no node fits"}],
        "pods": [{"name": "flowers-0", "phase": "Pending", "node": None, "reason": "Unschedulable", "restarts": 0}],
        "events": [event | {"about": "Pod flowers-0", "count": 3}],
    }

    def with_job(route: Route) -> None:
        page = route.fetch().json()
        page["run"]["job"] = {"namespace": "team-a", "name": "flowers"}
        route.fulfill(json=page)

    opened.page.route("**/api/run/*", with_job)
    opened.page.route("**/api/job/*", lambda route: route.fulfill(json=job))
    opened.open_run("fp16-xla")
    section = opened.page.get_by_role("region", name="Job")
    expect(section.get_by_role("note")).to_contain_text(why)
    expect(section.get_by_role("row", name="flowers-0 Pending").first).to_be_visible()
    expect(section.get_by_text("FailedScheduling")).to_be_visible()
    expect(opened.page.locator(".where")).to_contain_text("job team-a/flowers")


def test_the_link_opens_the_board_from_a_page_of_another_site(
    served_stories: Served, open_page: Callable[..., Opened]
) -> None:
    """As a click in a web terminal does: a cookie with SameSite=Strict would not come back from the redirect."""
    opened = open_page("about:blank")
    link = f'<a href="{served_stories.address}">board</a>'
    opened.page.route("http://terminal.example/", lambda route: route.fulfill(body=link, content_type="text/html"))
    opened.page.goto("http://terminal.example/")
    opened.page.get_by_role("link", name="board").click()
    opened.page.locator("tr[data-run]").first.wait_for()

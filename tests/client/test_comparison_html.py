"""The page: whole, self-contained, and safe with any name."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

from mptraining.comparison import compare
from mptraining.comparison_html import page

RunIn = Callable[..., Path]
VOID = {"meta", "br", "line", "circle", "polyline"}


class Balance(HTMLParser):
    """Fails on a tag that is closed by another."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_holds_table_and_curves(run_in: RunIn) -> None:
    html = page(compare([str(run_in("one")), str(run_in("two", steps=20, done=False))]))
    balance = Balance()
    balance.feed(html)
    assert balance.open == []
    # loss and accuracy, each against steps and seconds.
    assert balance.seen.count("svg") == 4
    assert "<title>one: loss 1 at step 1</title>" in html
    assert "<title>one: validation accuracy 0.8 at step 10</title>" in html
    assert "prefers-color-scheme:dark" in html
    assert '<td class="best">' not in html.partition("</table>")[0].partition("unfinished")[2][:20]


def test_the_page_loads_nothing(run_in: RunIn) -> None:
    html = page(compare([str(run_in("one"))]))
    assert not re.search(r"https?://|<script|<link|<img|@import|url\(", html)
    assert "default-src 'none'" in html


def test_names_and_notes_are_text(run_in: RunIn) -> None:
    html = page(compare([str(run_in("<b>one & two", result={"notices": ("<script>x</script>",)}))]))
    assert "<b>" not in html
    assert "<script>" not in html
    assert "&lt;b&gt;one &amp; two" in html


def test_a_run_without_points_has_a_table_alone(run_in: RunIn) -> None:
    html = page(compare([str(run_in("none", steps=0))]))
    assert "<svg" not in html
    assert "<table>" in html

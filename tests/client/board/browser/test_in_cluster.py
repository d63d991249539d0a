"""The page of a board in a cluster, as behind a proxy that adds the user's token to each request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.client.board.browser.conftest import Opened
from tests.client.board.in_cluster.conftest import start, two_teams

pytestmark = pytest.mark.browser


def test_a_user_sees_the_own_jobs_until_the_right_ends(tmp_path: Path, open_page: Callable[..., Opened]) -> None:
    fake, settings = two_teams(tmp_path)
    fake.rights -= {("red", "list", "pods", "red")}
    with start(fake, **settings, hosts=["127.0.0.1"]) as board:
        board.wait_for_folder("red", host="127.0.0.1")
        opened = open_page(f"http://127.0.0.1:{board.port}/", extra_http_headers={"Authorization": "Bearer red"})
        expect(opened.page.locator("tr[data-run]")).to_have_count(1)
        assert opened.names() == ["red-job"]
        expect(opened.page.locator("#views a")).to_have_text(["Runs", "Compare"])
        opened.go("#/job/red/red-job")
        expect(opened.page.locator("main")).to_contain_text("You have no right to list the pods of this namespace.")
        expect(opened.page.locator("main")).to_contain_text("No events; Kubernetes deletes them after an hour.")
        opened.go("#/job/blue/blue-job")
        expect(opened.page.locator("main")).to_contain_text("you may not get mptrainingjobs in namespace blue")
        expect(opened.page.locator("#connection")).to_have_text("live")
        opened.go("#/runs")
        opened.open_run("red-job")
        opened.drawn("loss")
        opened.allowed = ["401", "403", "Failed to load resource"]
        del fake.tokens["red"]
        board.clock.now += 31
        expect(opened.page.locator("#notice")).to_contain_text("sign in again")
        expect(opened.page.locator("#connection")).to_have_text("not connected")

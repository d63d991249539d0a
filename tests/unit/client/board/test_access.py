"""Who may ask the board, over a real socket: token, Host header, method, headers, paths."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from mptraining.board import access, serve
from mptraining.cli.main import app
from tests.testbed.board_runs import write_run
from tests.testbed.served_board import TOKEN, Answer, Served, served

PATHS = ("/", "/api/runs", "/api/run/x", "/api/series?run=x&name=loss", "/api/live", "/static/main.js", "/nothing")


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A board over one run with a log, beside which there is a secret."""
    top = tmp_path_factory.mktemp("board")
    folder = top / "runs" / "plain"
    write_run(folder, 0, 20, random.Random(0))
    (folder / "logs").mkdir()
    (folder / "logs" / "1-0.log").write_text("hello\n")
    (top / "secret").write_text("secret")
    (folder / "logs" / "link.log").symlink_to(top / "secret")
    (folder / "quarantine").symlink_to(top)
    with served(top / "runs") as running:
        yield running


def test_the_printed_address_sets_the_cookie_that_opens_everything(board: Served) -> None:
    first = board.request(f"/?token={TOKEN}", headers={})
    assert (first.status, first.headers["Location"]) == (303, "/")
    cookie = first.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    # Strict would lock out who follows the link from a web terminal; the browser tests follow one.
    assert "SameSite=lax" in cookie
    assert str(board.port) in cookie.split("=")[0]
    page = board.request("/", headers={"Cookie": cookie.split(";")[0]})
    assert page.status == 200
    assert b'id="board"' in page.body


@pytest.mark.parametrize("path", PATHS)
def test_a_wrong_or_absent_token_sees_nothing(board: Served, path: str) -> None:
    for headers in ({}, {"Cookie": f"{access.cookie_name(board.port)}=wrong"}, {"Cookie": "other=" + TOKEN}):
        answer = board.request(path, headers=headers)
        assert answer.status == 403
        assert b"plain" not in answer.body
    wrong = board.request("/?token=wrong", headers={})
    assert wrong.status == 403
    assert "Set-Cookie" not in wrong.headers


def test_a_token_in_the_address_of_another_page_is_not_taken(board: Served) -> None:
    """Addresses of the API are in logs and histories; the token is in that of the first visit alone."""
    assert board.request(f"/api/runs?token={TOKEN}", headers={}).status == 403


def test_the_address_that_is_opened_for_the_user_works_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `mptj board --open` does it; the printed address works again and again."""
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    # A CliRunner would replace the standard output of all threads.
    command = ["board", str(tmp_path), "--open", "--port", "0"]
    process = threading.Thread(target=app, args=(command,), kwargs={"standalone_mode": False})
    servers: list[Any] = []
    made = serve.server_for

    def server_for(*arguments: Any, **options: Any) -> Any:
        servers.append(made(*arguments, **options))
        return servers[-1]

    monkeypatch.setattr(serve, "server_for", server_for)
    process.start()
    try:
        end = time.monotonic() + 30
        while not opened:
            assert time.monotonic() < end
            time.sleep(0.02)
        address = urlsplit(opened[0])
        served = Served(int(address.port or 0), lambda: None)
        first = eventually_answered(served, f"/?{address.query}")
        assert first.status == 303
        cookie = first.headers["Set-Cookie"].split(";")[0]
        assert served.request("/api/runs", headers={"Cookie": cookie}).status == 200
        assert served.request(f"/?{address.query}", headers={}).status == 403
        token = cookie.partition("=")[2]
        assert token not in opened[0]
        assert [served.request(f"/?token={token}", headers={}).status for _ in range(2)] == [303, 303]
        wrong = {"Cookie": f"{access.cookie_name(served.port)}={address.query.partition('=')[2]}"}
        assert served.request("/api/runs", headers=wrong).status == 403
    finally:
        servers[0].should_exit = True
        process.join(20)


def eventually_answered(served: Served, path: str) -> Answer:
    end = time.monotonic() + 30
    while True:
        try:
            return served.request(path, headers={})
        except ConnectionError:
            assert time.monotonic() < end
            time.sleep(0.02)


@pytest.mark.parametrize("host", ["evil.example:8666", "127.0.0.1.evil.example"])
def test_a_name_that_was_made_to_point_here_is_refused(board: Served, host: str) -> None:
    """DNS rebinding: the browser sends the cookie of no name, but a page could also guess the first address."""
    for path in ("/api/runs", f"/?token={TOKEN}"):
        assert board.request(path, headers=board.headers | {"Host": host}).status == 403


@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        ("LOCALHOST.:1", True), ("127.0.0.1:8666", True), ("[::1]:8666", True), ("[::1]", True),
        ("192.168.1.7:8666", True), ("GPU-Box:8666", True), ("gpu-box.example", False),
        ("localhost@evil.example", False), ("evil:127.0.0.1", False), ("localhost.evil", False), ("", False),
    ],
)  # fmt: skip
def test_hosts(header: str, allowed: bool) -> None:
    assert access.is_allowed_host(header, ["gpu-box"]) is allowed


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"])
def test_get_is_the_only_method(board: Served, method: str) -> None:
    for path in ("/", "/api/runs", "/static/main.js"):
        assert board.request(path, method=method).status == 405
        assert board.request(path, method=method, headers={}).status == 403


@pytest.mark.parametrize("path", ["/", "/api/runs", "/api/nothing", "/static/main.js"])
def test_every_answer_has_the_headers(board: Served, path: str) -> None:
    for headers in (board.headers, {}):
        found = board.request(path, headers=headers).headers
        policy = dict(part.strip().split(" ", 1) for part in found["Content-Security-Policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert "unsafe" not in found["Content-Security-Policy"]
        assert (found["X-Content-Type-Options"], found["Referrer-Policy"]) == ("nosniff", "no-referrer")
        assert "Access-Control-Allow-Origin" not in found


def test_no_path_leaves_the_folder_of_logs(board: Served) -> None:
    (run,) = board.get("/api/runs")["runs"]
    logs = f"/api/logs/{run['id']}"
    assert board.get(f"{logs}/1-0.log")["text"] == "hello\n"
    assert [each["name"] for each in board.get(f"/api/run/{run['id']}")["logs"]] == ["1-0.log"]
    tries = ["../job.json", "..%2fjob.json", "%2e%2e/job.json", "..%5cjob.json", "%2fetc%2fpasswd", "..", "1-0.log%00"]
    for each in [*tries, "....//job.json", "link.log", "../../../secret", "../quarantine/secret"]:
        answer = board.request(f"{logs}/{each}")
        assert (answer.status, b"secret" in answer.body) == (404, False), each
    for each in ("../state.py", "..%2fstate.py", "%2e%2e/%2e%2e/board/state.py"):
        assert board.request(f"/static/{each}").status == 404

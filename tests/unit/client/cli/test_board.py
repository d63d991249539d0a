"""`mptj board` as a command: its address, its end, and what it says where something is missing."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mptraining.board import serve
from mptraining.cli.board import running_over, tensorboard_command
from mptraining_api.problems import InvalidSpec
from tests.testbed.mptj import signals_as_in_a_terminal

MODULE = "mptraining.cli.board"
RunIn = Callable[..., Path]
Environment = Callable[..., dict[str, str]]


def test_it_prints_its_address_and_ends_at_once_with_control_c(run_in: RunIn, environment: Environment) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "mptraining", "board", str(run_in().parent), "--host", "0.0.0.0", "--port", "0"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=signals_as_in_a_terminal,  # noqa: PLW1509
    )
    name, _, url = process.stdout.readline().strip().partition(": ")
    assert name == "board"
    assert process.stdout.readline() == "Ctrl-C ends it.\n"
    address, _, query = url.removeprefix("http://").partition("/")
    assert address.startswith("127.0.0.1:")
    connection = http.client.HTTPConnection(address, timeout=10)
    connection.request("GET", f"/{query}")
    first = connection.getresponse()
    assert first.status == 303
    first.read()
    # A page that is open has a stream that never ends by itself.
    connection.request("GET", "/api/live", headers={"Cookie": first.headers["Set-Cookie"].split(";")[0]})
    live = connection.getresponse()
    assert live.readline() == b": connected\n"
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert b"event: bye" in live.read()
    # The rest is the end of the interpreter.
    assert time.monotonic() - begin < 2
    printed, errors = process.communicate(timeout=10)
    connection.close()
    assert process.returncode == 0
    assert printed == ""
    (warning,) = errors.splitlines()
    assert warning.startswith("warning: 0.0.0.0 is reached from other machines")


@pytest.mark.parametrize("page", [(), ("--to", "page.html")])
def test_without_the_extra_it_names_the_command_to_install_it(
    monkeypatch: pytest.MonkeyPatch, mptj: Callable[..., Any], page: tuple[str, ...]
) -> None:
    monkeypatch.setattr(f"{MODULE}.find_spec", lambda name: None)
    refused = mptj("board", *page)
    assert (refused.returncode, refused.stderr) == (
        2,
        "mptj: mptj board needs packages that are not installed: starlette, uvicorn. pip install 'mptraining[board]'\n",
    )


def test_a_port_in_use_is_named_and_the_default_takes_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve.bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidSpec, match=rf"127.0.0.1:{port}: Address already in use. Give another --port"):
            serve.bind("127.0.0.1", port)
        monkeypatch.setattr(serve, "PORT", port)
        with serve.bind("127.0.0.1", None) as next_one:
            assert next_one.getsockname()[1] != port
    with pytest.raises(InvalidSpec, match="Give another --port"):
        serve.bind("192.0.2.1", 80)


def test_tensorboard_reads_the_same_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tensorboard_command(["runs"])[1:5] == ["-m", "tensorboard.main", "--logdir", "runs"]
    assert tensorboard_command(["runs", "gs://b/runs"])[3:5] == ["--logdir_spec", "runs,gs://b/runs"]
    monkeypatch.setattr(f"{MODULE}.find_spec", lambda name: None)
    with (
        pytest.raises(InvalidSpec, match=r"TensorBoard is not installed here. pip install"),
        running_over(["runs"], say=print),
    ):
        pass

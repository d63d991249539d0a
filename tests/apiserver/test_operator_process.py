"""The program as a process: immediate help, one line about wrong settings, a cluster that does not respond."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from mptraining_operator import __main__
from mptraining_operator.__main__ import app
from tests.testbed.processes import free_ports


def test_help_loads_none_of_the_heavy_parts() -> None:
    heavy = ("kubernetes", "kopf", "aiohttp", "pydantic", "yaml")
    script = f"import sys, mptraining_operator.__main__; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert "settings" in result.stdout


def test_wrong_settings_are_one_line_and_exit_2(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    for text in ("logLevel: LOUD", "logFormat: xml", "worker: 3"):
        file.write_text(text)
        result = CliRunner().invoke(app, ["run", "--settings", str(file)])
        assert result.exit_code == 2, result.output
        assert len(result.stderr.strip().splitlines()) == 1
        assert text.split(":")[0] in result.stderr


def test_an_api_server_that_is_away_is_waited_for(tmp_path: Path) -> None:
    """As in a pod: with the environment that a kubelet gives it."""
    (port,) = free_ports(1)
    config, settings = tmp_path / "config", tmp_path / "settings.yaml"
    clusters = [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}]
    contexts = [{"name": "x", "context": {"cluster": "c", "user": "u"}}]
    users = [{"name": "u", "user": {"token": "t"}}]
    config.write_text(
        yaml.safe_dump({"clusters": clusters, "users": users, "contexts": contexts, "current-context": "x"})
    )
    settings.write_text(f"healthPort: {port}\nlogFormat: text\nprogress: {{enabled: false}}\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "mptraining_operator", "run", "--settings", str(settings)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "KUBECONFIG": str(config), "KUBERNETES_SERVICE_HOST": ""},
    )
    assert process.stderr is not None
    try:
        assert "the API server does not answer" in process.stderr.readline()
        assert (answer(port, "/healthz"), answer(port, "/readyz")) == (200, 503)
        # The stacks of all threads, written by C code.
        process.send_signal(signal.SIGUSR2)
        assert any("(most recent call first)" in line for line in iter(process.stderr.readline, ""))
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        rest = process.stderr.read()
        assert process.wait(60) == 0, rest
        assert time.monotonic() - began < 30
        assert "stopping" in rest
        assert "Traceback" not in rest
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def answer(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=240) as found:
            return int(found.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    names = ("kopf", "aiohttp", "asyncio", "urllib3", "kubernetes", "kopf._core.reactor.running", "kopf._cogs.clients")
    levels = {name: logging.getLogger(name).level for name in names}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)


def test_json_lines() -> None:
    stream = io.StringIO()
    __main__.set_up("INFO", "json", stream)
    logger = logging.getLogger("mptraining_operator.test")
    logger.info("started %d", 1, extra={"job": "team/flöte", "attempt": 2})
    logger.debug("not said")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logger.exception("failed")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert first["time"].endswith("Z")
    assert {**first, "time": ""} == {
        "time": "",
        "level": "INFO",
        "logger": "mptraining_operator.test",
        "message": "started 1",
        "job": "team/flöte",
        "attempt": 2,
    }
    assert "ValueError: two\nlines" in second["error"]


def test_other_loggers_write_only_warnings() -> None:
    stream = io.StringIO()
    __main__.set_up("DEBUG", "json", stream)
    for name in ("kopf.objects", "aiohttp.access", "urllib3.connectionpool"):
        logging.getLogger(name).info("chatter")
        logging.getLogger(name).warning("trouble")
    logging.getLogger("kopf._core.reactor.running").warning("OS signals are ignored")
    logging.getLogger("kopf._cogs.clients.watching").error("Request attempt #1/367 failed")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["trouble"] * 3

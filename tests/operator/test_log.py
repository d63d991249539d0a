"""Log lines that both a collector and a person can read."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from mptraining_operator import __main__


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


def test_plain_lines() -> None:
    stream = io.StringIO()
    __main__.set_up("DEBUG", "text", stream)
    logging.getLogger("mptraining_operator.test").warning("slow", extra={"job": "team/a"})
    assert stream.getvalue().endswith("WARNING slow job=team/a\n")


def test_other_loggers_write_only_warnings() -> None:
    stream = io.StringIO()
    __main__.set_up("DEBUG", "json", stream)
    for name in ("kopf.objects", "aiohttp.access", "urllib3.connectionpool"):
        logging.getLogger(name).info("chatter")
        logging.getLogger(name).warning("trouble")
    logging.getLogger("kopf._core.reactor.running").warning("OS signals are ignored")
    logging.getLogger("kopf._cogs.clients.watching").error("Request attempt #1/367 failed")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["trouble"] * 3

"""Interleaved rounds over long-lived children: A B C A B C …, so that another process disturbs all alike."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Self
from unittest import mock

# Less output of TensorFlow in the children.
ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
_spawn = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Measured:
    """Wall-clock and CPU seconds (of all threads) of `steps` steps."""

    steps: int
    seconds: float
    cpu_seconds: float

    @property
    def speed(self) -> float:
        return self.steps / self.seconds

    @property
    def cpu_per_step(self) -> float:
        return self.cpu_seconds / self.steps


def interleaved(settings: Mapping[str, Mapping[str, Any]], *, rounds: int, seconds: float) -> dict[str, list[Measured]]:
    """Start a process for each `contenders.Setting`, and train in turn, about `seconds` each."""
    with ExitStack() as stack, mock.patch.dict(os.environ, ENVIRONMENT):
        children = {name: stack.enter_context(_Child(setting)) for name, setting in settings.items()}
        # Two at a time: a start is mostly compiling, and there are few cores.
        with ThreadPoolExecutor(2) as starters:
            list(starters.map(_Child.start, children.values()))
        measured: dict[str, list[Measured]] = {name: [] for name in children}
        for _ in range(rounds):
            for name, child in children.items():
                measured[name].append(child.train(seconds))
        return measured


class _Child:
    """The process of one contender."""

    def __init__(self, setting: Mapping[str, Any]) -> None:
        self._pipe, theirs = _spawn.Pipe()
        self._process = _spawn.Process(target=_serve, args=(dict(setting), theirs), daemon=True)
        self._theirs = theirs

    def start(self) -> None:
        """Start it and wait until it has compiled."""
        self._process.start()
        self._theirs.close()
        self._pipe.recv()

    def train(self, seconds: float) -> Measured:
        self._pipe.send(seconds)
        measured: Measured = self._pipe.recv()
        return measured

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.pid is not None:
            self._process.kill()


def _serve(setting: dict[str, Any], pipe: Connection) -> None:
    """Train for about as many seconds as each request says, until there is no more."""
    # The parent's standard output has the figures.
    os.dup2(2, 1)
    from hack.bench.trainer.contenders import MULTIPLE, Setting, make

    contender = make(Setting(**setting))
    contender.train(MULTIPLE)
    measured = contender.train(2 * MULTIPLE)
    pipe.send(measured)
    while True:
        steps = pipe.recv() * measured.steps / measured.seconds
        measured = contender.train(max(1, round(steps / MULTIPLE)) * MULTIPLE)
        pipe.send(measured)

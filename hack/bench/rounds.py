"""Interleaved rounds over long-lived children: A B C A B C …, so that another process disturbs all alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hack.bench.figures import progress

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Round:
    """The result of one contender in one round; CPU seconds are those of all its threads."""

    steps: int
    seconds: float
    cpu_seconds: float

    @property
    def speed(self) -> float:
        return self.steps / self.seconds

    @property
    def cpu_per_step(self) -> float:
        return self.cpu_seconds / self.steps


def interleaved(settings: Mapping[str, Mapping[str, Any]], *, rounds: int, seconds: float) -> dict[str, list[Round]]:
    """Start `python -m hack.bench.trainer.child SETTING` for each, and train in turn, about `seconds` each."""
    with ExitStack() as stack:
        # Two at a time: a start is mostly compiling, and there are few cores.
        with ThreadPoolExecutor(2) as starters:
            started = list(starters.map(_Child, settings.values()))
        children = dict(zip(settings, started, strict=True))
        for child in started:
            stack.callback(child.close)
        measured: dict[str, list[Round]] = {name: [] for name in children}
        for _ in range(rounds):
            for name, child in children.items():
                measured[name].append(child.ask(seconds))
        return measured


def environment() -> dict[str, str]:
    """Return this process's environment with less output of TensorFlow."""
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}


class _Child:
    """One contender's process. Its other output is shown when it fails."""

    def __init__(self, setting: Mapping[str, Any]) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hack.bench.trainer.child", json.dumps(setting)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            cwd=ROOT,
            env=environment(),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._asks: IO[str] = self._process.stdin
        self._answers: IO[str] = self._process.stdout
        self._answer()

    def ask(self, seconds: float) -> Round:
        self._asks.write(f"{seconds}\n")
        self._asks.flush()
        return Round(**json.loads(self._answer()))

    def close(self) -> None:
        self._asks.close()
        self._process.wait()
        self._answers.close()
        self._said.close()

    def _answer(self) -> str:
        line = self._answers.readline()
        if not line:
            code = self._process.wait()
            self._said.seek(0)
            progress(self._said.read().decode(errors="replace")[-4000:])
            raise RuntimeError(f"{self._process.args!r} ended with {code}")
        return line

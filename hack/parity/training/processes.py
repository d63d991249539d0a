"""The processes that train programs: one child for each generation, and pairs of workers."""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from hack.parity.programs.program import Program

# A program that takes longer than this hangs. The first one of a process also imports TensorFlow.
SECONDS = 300.0
_KILLED = "the process died"
# A process is replaced once it is larger, in bytes, and after so many programs: TensorFlow keeps graphs of programs
# that no longer exist, and after 160 of them one takes three times as long.
_LARGEST = 3 << 30
_PROGRAMS = 40


class Lines:
    """A process that responds to each line with one JSON line."""

    def __init__(self, module: str, arguments: Sequence[str], log: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if name not in ("TF_CONFIG",)}
        root = str(Path(__file__).parents[3])
        environment["PYTHONPATH"] = os.pathsep.join([root, environment.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        with log.open("ab") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                env=environment,
                text=True,
            )
        self._answers: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ask(self, line: str) -> None:
        """Write one line; a process that died does not respond."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def answer(self, seconds: float) -> dict[str, Any]:
        """Return the next response, or `{"died": why}`; the process has then ended."""
        try:
            text = self._answers.get(timeout=seconds)
        except queue.Empty:
            self.close()
            return {"died": f"no answer within {seconds:.0f} s"}
        if not text:
            self.close()
            return {"died": f"{_KILLED}, exit code {self._process.returncode}"}
        found: dict[str, Any] = json.loads(text)
        return found

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._reader.join()
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")


class Child:
    """Trains programs of one generation by plain `fit` and on one and two replicas, in a process that is replaced."""

    def __init__(self, generation: str, folder: Path) -> None:
        self._generation = generation
        self._folder = folder
        self._lines: Lines | None = None
        self._done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lines is not None:
            self._lines.close()
            self._lines = None

    def attempt(self, program: Program) -> dict[str, Any]:
        """Return the child's response; a process that dies or hangs is a difference of the program."""
        if self._lines is None:
            log = self._folder / f"{self._generation}.log"
            self._lines = Lines("hack.parity.training.child", [self._generation, str(self._folder)], log)
            self._done = 0
        self._lines.ask(program.to_json())
        answer = self._lines.answer(SECONDS)
        self._done += 1
        if died := answer.get("died"):
            compared = {"variant": "1 replica", "verdict": "different", "what": f"fails: {died}"}
            answer = {"key": program.key, "compared": [compared], "seconds": SECONDS}
        if died or answer.get("bytes", 0) > _LARGEST or self._done >= _PROGRAMS:
            self._lines.close()
            self._lines = None
        return answer


class Pair:
    """Trains programs of one generation on two workers."""

    def __init__(self, generation: str, folder: Path) -> None:
        self._generation = generation
        self._folder = folder
        self._workers: list[Lines] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.close()
        self._workers = []

    def attempt(self, program: Program) -> dict[str, Any]:
        """Return worker 0's response; the pair is replaced when training failed, since one may wait for the other."""
        if not self._workers:
            hosts = [f"localhost:{port}" for port in _free_ports(2)]
            self._workers = [
                Lines(
                    "hack.parity.training.worker",
                    [self._generation, str(self._folder), str(index), *hosts],
                    self._folder / f"{self._generation}-worker-{index}.log",
                )
                for index in range(2)
            ]
        for worker in self._workers:
            worker.ask(program.to_json())
        answers = [worker.answer(SECONDS) for worker in self._workers]
        answer = answers[0]
        if died := answer.get("died"):
            compared = {"variant": "2 workers", "verdict": "different", "what": f"fails: {died}"}
            answer = {"key": program.key, "compared": [compared]}
        if any(one.get("died") or one.get("failed") or one.get("refused") for one in answers):
            self.__exit__()
        return answer


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()

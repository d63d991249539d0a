"""The processes that train programs: one child for each generation, and pairs of workers."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from hack.parity.programs.program import Program
from hack.parity.training import child
from tests.testbed.processes import free_ports

_spawn = multiprocessing.get_context("spawn")
# A program that takes longer than this hangs. The first one of a process also imports TensorFlow.
SECONDS = 300.0
# A process is replaced once it is larger, in bytes, and after so many programs: TensorFlow keeps graphs of programs
# that no longer exist, and after 160 of them one takes three times as long.
_LARGEST = 3 << 30
_PROGRAMS = 40


class _Answering:
    """A process in which `serve` responds to each program that it receives."""

    def __init__(self, serve: Callable[..., None], generation: str, folder: Path, log: str, *arguments: object) -> None:
        self._pipe, theirs = _spawn.Pipe()
        given = (serve, generation, folder / log, theirs, folder, *arguments)
        self._process = _spawn.Process(target=_begin, args=given, daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, program: Program) -> None:
        """Send a program; a process that died does not respond."""
        with suppress(OSError):
            self._pipe.send(program)

    def answer(self) -> dict[str, Any]:
        """Return the next response, or `{"died": why}`; the process has then ended."""
        died = f"no answer within {SECONDS:.0f} s"
        try:
            if self._pipe.poll(SECONDS):
                answer: dict[str, Any] = self._pipe.recv()
                return answer
        except (EOFError, OSError):
            self._process.join()
            died = f"the process died, exit code {self._process.exitcode}"
        self.close()
        return {"died": died}

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _begin(serve: Callable[..., None], generation: str, log: Path, *arguments: object) -> None:
    """Set up the process, before TensorFlow is imported; its output goes to the log."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.pop("TF_CONFIG", None)
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    # Two processes share two cores: threads that wait for each other take a tenth of the time.
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
    if generation == "Legacy":
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
    warnings.simplefilter("ignore")
    with suppress(EOFError):
        serve(*arguments)


class _Replaced:
    """Processes of one generation of Keras, which are replaced."""

    def __init__(self, generation: str, folder: Path) -> None:
        self._generation = generation
        self._folder = folder
        self._processes: list[_Answering] = []
        self._done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.close()
        self._processes, self._done = [], 0


class Child(_Replaced):
    """Trains programs by plain `fit` and on one and two replicas, in one process."""

    def attempt(self, program: Program) -> dict[str, Any]:
        """Return the child's response; a process that dies or hangs is a difference of the program."""
        if not self._processes:
            log = f"{self._generation}.log"
            self._processes = [_Answering(child.serve, self._generation, self._folder, log)]
        self._processes[0].ask(program)
        answer = self._processes[0].answer()
        self._done += 1
        if died := answer.get("died"):
            answer = _dead("1 replica", died)
        if died or answer.get("bytes", 0) > _LARGEST or self._done >= _PROGRAMS:
            self.__exit__()
        return answer


class Pair(_Replaced):
    """Trains programs on two workers."""

    def attempt(self, program: Program) -> dict[str, Any]:
        """Return worker 0's response; the pair is replaced when training failed, since one may wait for the other."""
        if not self._processes:
            hosts = [f"localhost:{port}" for port in free_ports(2)]
            logs = [f"{self._generation}-worker-{index}.log" for index in range(2)]
            self._processes = [
                _Answering(child.serve_worker, self._generation, self._folder, log, index, hosts)
                for index, log in enumerate(logs)
            ]
        for process in self._processes:
            process.ask(program)
        answers = [process.answer() for process in self._processes]
        answer = answers[0]
        if died := answer.get("died"):
            answer = _dead("2 workers", died)
        if any(response.get("died") or response.get("failed") or response.get("refused") for response in answers):
            self.__exit__()
        return answer


def _dead(variant: str, died: str) -> dict[str, Any]:
    return {"compared": [{"variant": variant, "verdict": "different", "what": f"fails: {died}"}], "seconds": SECONDS}

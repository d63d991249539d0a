"""Processes that run scripts and start at once: forked from one that has only imported Keras.

TensorFlow makes its devices and threads at first use, so that a copy is as good as a new process. One runs at a time.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

# The exit code of a process that exceeded its time limit, as of `timeout`.
TIMED_OUT = 124
_MODULES = ("keras", "tf_keras", "matplotlib.pyplot", "pandas", "mptraining_trainer.run", "mptraining_trainer.train")


_LEGACY = "TF_USE_LEGACY_KERAS"


class Server:
    """Starts processes; a context manager, at whose exit all of them end. `environment` is that of its own process.

    TensorFlow reads at its import which generation `tf.keras` is, hence a process to copy for each.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._processes: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            assert process.stdin
            process.stdin.close()
            process.wait(60)

    def run(
        self, module: str, arguments: list[str], folder: Path, environment: Mapping[str, str], seconds: float
    ) -> int:
        """Return the exit code of `module.main(arguments)` in `folder`, TIMED_OUT after `seconds`; it prints into
        out.log.
        """
        question = {
            "module": module,
            "arguments": arguments,
            "folder": str(folder),
            "environment": dict(environment),
            "seconds": seconds,
        }
        process = self._of(environment.get(_LEGACY, "0"))
        assert process.stdin
        assert process.stdout
        print(json.dumps(question), file=process.stdin, flush=True)
        answer = process.stdout.readline()
        if not answer:
            raise RuntimeError("the server of processes has ended")
        return int(json.loads(answer))

    def _of(self, generation: str) -> subprocess.Popen[str]:
        if generation not in self._processes:
            self._processes[generation] = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.keras_io.server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=self._environment | {_LEGACY: generation},
                text=True,
            )
        return self._processes[generation]


def _serve() -> None:
    for name in _MODULES:
        # Not all packages are installed everywhere; a script that needs a missing one reports it.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        question = json.loads(line)
        process = os.fork()
        if process == 0:
            _work(question)
        print(json.dumps(_wait(process, question["seconds"])), file=answers, flush=True)


def _wait(process: int, seconds: float) -> int:
    end = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            # Including the processes that it started itself.
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return TIMED_OUT
        time.sleep(0.05)


def _work(question: dict[str, Any]) -> NoReturn:
    code = 1
    try:
        os.setsid()
        os.chdir(question["folder"])
        log = os.open("out.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for number in (1, 2):
            os.dup2(log, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.clear()
        os.environ.update(question["environment"])
        _own_home()
        code = importlib.import_module(question["module"]).main(question["arguments"]) or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - nothing of the parent's may run in this process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _own_home() -> None:
    """Keras reads its cache folder at import: that was the parent's."""
    config = sys.modules.get("keras.src.backend.config")
    if config is not None:
        config._KERAS_DIR = os.environ["KERAS_HOME"]  # type: ignore[attr-defined]


if __name__ == "__main__":
    _serve()

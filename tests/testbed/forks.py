"""Trainer processes that start in a second: forked from one that has only imported TensorFlow.

TensorFlow creates its devices and threads at first use, so that a copy of a process that only imported it is as good as
a new one. It differs in one thing: all copies share the hash seed of their parent.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from tests.soak.kill_and_resume.faults import Fault


class Forks:
    """A server of trainer processes; a context manager, at whose exit all of them end."""

    def __init__(self) -> None:
        # Several threads may call it.
        self._lock = threading.Lock()
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.testbed.forks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server.stdin
        assert self._server.stdout
        # The end of its input tells it to kill the processes that still run, and to exit.
        self._server.stdin.close()
        self._server.wait(60)
        self._server.stdout.close()

    def start(self, environment: Mapping[str, str], output: Path, fault: Fault) -> int:
        """Start a worker with that environment; return its process id. Standard output is in `output`, standard error
        in `.err`.
        """
        return int(self._ask(start=dict(environment), output=str(output), fault=fault.to_document()))

    def wait(self, process: int, seconds: float) -> int:
        """Return its exit code, negative for a signal. Raises TimeoutError."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            code = self.ended(process)
            if code is not None:
                return code
            time.sleep(0.02)
        raise TimeoutError(f"a worker still runs after {seconds:.0f} s")

    def ended(self, process: int) -> int | None:
        """Return its exit code, once; None while it runs."""
        code = self._ask(ended=process)
        return None if code is None else int(code)

    def _ask(self, **question: Any) -> Any:
        assert self._server.stdin
        assert self._server.stdout
        with self._lock:
            print(json.dumps(question), file=self._server.stdin, flush=True)
            answer = self._server.stdout.readline()
        if not answer:
            raise RuntimeError("the server of trainer processes is gone")
        return json.loads(answer)


class Fork:
    """A forked trainer process, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, forks: Forks, environment: Mapping[str, str], output: Path) -> None:
        self._forks = forks
        self.pid = forks.start(environment, output, Fault())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._forks.ended(self.pid)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Return the exit code, negative for a signal. Raises TimeoutError."""
        if self.returncode is None:
            self.returncode = self._forks.wait(self.pid, timeout)
        return self.returncode

    def terminate(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _serve() -> None:
    # Every worker needs these modules; none of them creates a device.
    import keras  # noqa: F401

    import mptraining_trainer.run
    import mptraining_trainer.train  # noqa: F401

    running: set[int] = set()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        question = json.loads(line)
        answer: int | None
        if "start" in question:
            answer = _fork(question)
            running.add(answer)
        else:
            process = question["ended"]
            found, status = os.waitpid(process, os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if found else None
            running -= {found}
        print(json.dumps(answer), file=answers, flush=True)
    for process in running:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def _fork(question: dict[str, Any]) -> int:
    process = os.fork()
    if process == 0:
        _work(question)
    return process


def _work(question: dict[str, Any]) -> NoReturn:
    code = 1
    try:
        for number, name in ((1, question["output"]), (2, Path(question["output"]).with_suffix(".err"))):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.clear()
        os.environ.update(question["start"])
        Fault.read(question["fault"]).arm()
        from mptraining_trainer import __main__ as trainer

        code = trainer.main(["train"])
    except BaseException:  # noqa: BLE001 - nothing of the parent's may run in this process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()

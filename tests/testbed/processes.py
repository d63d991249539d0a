"""One server process: its log file, its readiness, and its end even when the parent is killed."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

# The kernel sends the death signal when the *thread* that started a process ends, so that one thread, which lives as
# long as this interpreter, starts them all.
_starter = ThreadPoolExecutor(1, thread_name_prefix="testbed-starter")
# Above the well-known ports, below the kernel's ephemeral ports and Kubernetes' node ports.
_PORTS = range(12_000, 30_000)


class NotStarted(RuntimeError):
    """A server ended, or was not ready in time; the message contains the end of its log."""


class Server:
    """A started process. A context manager, so that a `with` or an ExitStack ends it."""

    def __init__(
        self, command: Sequence[str | Path], *, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start `command`, its output appended to `log`; `environment` is added to this process's own."""
        self.name = log.stem
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        # Also when pytest is killed: no server survives the tests. Without util-linux only `stop` ends it.
        guard = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
        with log.open("ab") as output:
            self._process: subprocess.Popen[bytes] = _starter.submit(
                lambda: subprocess.Popen(
                    [*guard, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **(environment or {})},
                    start_new_session=True,  # Ctrl-C must reach only pytest, which stops the servers in order
                )
            ).result()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._process.poll()

    def wait_until(self, ready: Callable[[], bool], *, seconds: float) -> None:
        """Call `ready` every 50 ms; OSError counts as no. Raises NotStarted at the process's end or after `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            if self.exit_code is not None:
                raise NotStarted(f"{self.name} ended with {self.exit_code}\n{self.last_lines()}")
            try:
                if ready():
                    return
            except OSError:
                pass
            if time.monotonic() > deadline:
                raise NotStarted(f"{self.name} was not ready after {seconds:g} s\n{self.last_lines()}")
            time.sleep(0.05)

    def last_lines(self, count: int = 30) -> str:
        """Return the end of its log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-count:])

    def signal(self, number: int) -> None:
        """Send a signal: SIGSTOP and SIGCONT pause it, SIGKILL is a crash."""
        self._process.send_signal(number)

    def wait(self, seconds: float) -> int:
        """Return its exit code. Raises subprocess.TimeoutExpired."""
        return self._process.wait(seconds)

    def stop(self, *, seconds: float = 10) -> None:
        """Send SIGTERM, and SIGKILL after `seconds`. Does nothing to a process that has ended."""
        if self.exit_code is None:
            self._process.terminate()
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def free_ports(count: int) -> list[int]:
    """Return different local ports on which no process listens.

    Not of those that the kernel hands out (32768 and up on Linux): between here and the moment that a server listens,
    or while it is down on purpose, one of these may become the local port of any connection. Drawn by the system,
    since every process of the tests seeds its own `random` alike.
    """
    draw = random.SystemRandom()
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < count:
            number = draw.choice(_PORTS)
            each = held.enter_context(socket.socket())
            try:
                each.bind(("127.0.0.1", number))
            except OSError:
                continue
            found.append(number)
    return found

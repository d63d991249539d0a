"""Processes of the container that the kernel kills for memory: a program that waits for one makes no progress.

Under cgroup v1, and where the kubelet sets singleProcessOOMKill, the kernel kills one process of a container and the
others run on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from mptraining_api.events import Event, Progress
from mptraining_api.launch import WorkerIdentity
from mptraining_trainer.host import Cgroup
from mptraining_trainer.report.telemetry import Telemetry

_EVERY = 5.0


class OomWatch:
    """Counts the kills since its creation, in a thread; a change is a notice, and a report to the operator at once.

    `report` receives the last Progress with the number of kills: a program that waits reports none by itself.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        identity: WorkerIdentity,
        *,
        report: Callable[[Event], None] | None = None,
        cgroup: Cgroup | None = None,
        every: float = _EVERY,
    ) -> None:
        self._telemetry = telemetry
        self._report = report
        self._cgroup = cgroup or Cgroup()
        self._before = self._cgroup.oom_kills()
        self._killed = 0
        self._progress = Progress(
            time=0.0,
            attempt=identity.attempt,
            incarnation=identity.incarnation,
            worker=identity.index,
            step=0,
            epoch=1,
            metrics={},
        )
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(every,), name="OOM kills", daemon=True)
        telemetry.listeners.append(self._on_event)
        self._thread.start()

    def close(self, message: str, *, failed: bool) -> str:
        """End the thread; return the message of a run's end, of a failed one with the kills."""
        self._closed.set()
        self._thread.join()
        self._count_kills()
        return f"{message.rstrip('.')}. Also: {self._text()}" if failed and self._killed else message

    def _run(self, every: float) -> None:
        while not self._closed.wait(every):
            self._count_kills()

    def _count_kills(self) -> None:
        killed = self._cgroup.oom_kills() - self._before
        if killed <= self._killed:
            return
        self._killed = killed
        self._telemetry.notice("ProcessKilledForMemory", self._text(), level="Warning")
        if self._report is not None:
            self._report(self._progress.model_copy(update={"oom_kills": killed}))

    def _text(self) -> str:
        limit = self._cgroup.memory_limit()
        of = f" of {limit / 1e6:.0f} MB" if limit is not None and self._cgroup.in_container else ""
        processes = "1 process" if self._killed == 1 else f"{self._killed} processes"
        return (
            f"the kernel killed {processes} of this worker at the memory limit{of}. Raise "
            "podTemplate.resources.limits.memory, use fewer processes, or set data.cache to None"
        )

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Progress):
            self._progress = event

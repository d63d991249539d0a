"""The runs of trials on this machine: each is a local run in a thread of its own.

A thread, not a process: the watchdog of a local run ends its workers when this process dies, so that a killed driver
leaves no run behind that its successor would start a second time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mptraining.local.runner import LocalRunner
from mptraining.runs import load_run
from mptraining.sweeps.folder import JobEnd, JobRecord
from mptraining_api import outcomes
from mptraining_api.events import Event, Progress
from mptraining_api.outcomes import Budget
from mptraining_api.problems import Problem
from mptraining_api.sweep.trial_job import rounded

# The command in the last line of a local run, which a trial does not show.
_AGAIN = "the same command"


class TrialDisplay:
    """Display of a run that keeps the last progress and prints nothing: the run folder has the output."""

    def __init__(self) -> None:
        self.progress: Progress | None = None

    def say(self, text: str) -> None: ...

    def waiting(self, text: str) -> None: ...

    def event(self, worker: int, event: Event) -> None:
        if worker == 0 and isinstance(event, Progress):
            self.progress = event

    def line(self, worker: int, stream: Literal["stdout", "stderr"], text: str) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """Settings of all trials: relative paths begin in the folder of `file`, `command` is the trainer's."""

    file: Path
    command: Sequence[str]
    clock: Callable[[], float]


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A run that has not ended its job, because of a signal, or of a `fault` of the machine."""

    fault: str = ""


@dataclass
class TrialRun:
    """The run of one trial's job; its `outcome` is an exception after a fault of this program."""

    record: JobRecord
    settings: TrialSettings
    environment: Mapping[str, str]
    changed: threading.Event
    display: TrialDisplay = field(default_factory=TrialDisplay)
    outcome: JobEnd | Interrupted | Exception | None = None
    _signals: list[int] = field(default_factory=list)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=self.record.name)
        self._thread.start()

    def send(self, number: int) -> None:
        """Let the run save and stop; a second signal kills it."""
        self._signals.append(number)

    @property
    def over(self) -> bool:
        return self._thread is not None and not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.outcome = self._train()
        except Problem as problem:
            self.outcome = self._failed(outcomes.by_reason(problem.reason), f"{problem.reason}: {problem}")
        except Exception as error:  # noqa: BLE001 - the driver raises it in its own thread
            self.outcome = error
        finally:
            self.changed.set()

    def _train(self) -> JobEnd | Interrupted:
        messages: list[str] = []
        runner = LocalRunner(
            folder=self.settings.file.absolute().parent,
            command=self.settings.command,
            again=_AGAIN,
            signals=self._signals,
            environment=self.environment,
            error=messages.append,
        )
        code = runner.run(self.record.document, self.display).exit_code
        folder = str(self.record.document["spec"]["output"]["uri"])
        if code == 0:
            return JobEnd(state="Succeeded", time=self.settings.clock(), metrics=rounded(load_run(folder).metrics))
        if self._signals:
            return Interrupted()
        return self._failed(outcomes.by_exit_code(code), _why(folder, messages) or f"exit code {code}")

    def _failed(self, outcome: outcomes.Outcome, message: str) -> JobEnd | Interrupted:
        if outcome.budget is Budget.INFRASTRUCTURE_RETRIES:
            return Interrupted(message)
        return JobEnd(state="Failed", time=self.settings.clock(), message=message)


def _why(folder: str, messages: Sequence[str]) -> str:
    """Return why a run failed: as its trainer reported it, else as it ended."""
    try:
        run = load_run(folder)
    except Problem:
        # It may have ended before it wrote anything.
        run = None
    if run is not None and run.message:
        return f"{run.reason}: {run.message}"
    return " ".join(messages).partition(f" `{_AGAIN}`")[0]

"""Kills for memory, as the kernel counts them, become a notice and a report to the operator while nothing else is."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

from mptraining_api import events
from mptraining_api.launch import WorkerIdentity
from mptraining_trainer.host import Cgroup
from mptraining_trainer.report.oom_watch import OomWatch
from mptraining_trainer.report.telemetry import Telemetry

IDENTITY = WorkerIdentity(index=0, hosts=(), attempt=2, incarnation="i")


def kills(folder: Path, count: int) -> Cgroup:
    (folder / "cgroup.controllers").write_text("memory\n")
    (folder / "memory.current").write_text("1\n")
    (folder / "memory.max").write_text("268435456\n")
    (folder / "memory.events").write_text(f"oom 9\noom_kill {count}\n")
    return Cgroup(folder, folder / "absent")


def test_a_kill_is_a_notice_and_a_report_with_the_last_progress(tmp_path: Path) -> None:
    heard: list[Any] = []
    reported = threading.Event()

    def report(event: Any) -> None:
        heard.append(event)
        reported.set()

    out = io.StringIO()
    telemetry = Telemetry(IDENTITY, None, stream=out)
    watch = OomWatch(telemetry, IDENTITY, report=report, cgroup=kills(tmp_path, 1), every=0.01)
    telemetry.emit(events.Progress, step=7, epoch=1, metrics={"loss": 0.5})
    kills(tmp_path, 3)
    assert reported.wait(10)
    assert watch.close("all done", failed=False) == "all done"
    (found,) = heard
    assert (found.step, found.metrics, found.oom_kills, found.attempt) == (7, {"loss": 0.5}, 2, 2)
    assert "killed 2 processes of this worker at the memory limit of 268 MB" in out.getvalue()


def test_the_end_names_a_kill_that_was_not_reported_before(tmp_path: Path) -> None:
    heard: list[Any] = []
    telemetry = Telemetry(IDENTITY, None, stream=io.StringIO())
    watch = OomWatch(telemetry, IDENTITY, cgroup=kills(tmp_path, 4), every=60.0)
    assert watch.close("no such file", failed=True) == "no such file"
    assert telemetry.warnings == []
    watch = OomWatch(telemetry, IDENTITY, report=heard.append, cgroup=kills(tmp_path, 0), every=60.0)
    kills(tmp_path, 1)
    end = watch.close("train.py: BrokenProcessPool.", failed=True)
    assert end.startswith("train.py: BrokenProcessPool. Also: the kernel killed 1 process of this worker")
    assert [(event.step, event.oom_kills) for event in heard] == [(0, 1)], "before the first step"

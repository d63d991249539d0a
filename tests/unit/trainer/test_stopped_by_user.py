"""A local run that its user stopped is not reported as a lost machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mptraining_api import events, launch, outcomes
from mptraining_api.launch import WorkerIdentity
from mptraining_api.problems import Preempted
from mptraining_trainer import run as running
from mptraining_trainer.devices.preemption import Preemption
from tests.jobs import resolved_job

SAVED = Preempted("step 40", "this machine is being preempted; saved")
UNSAVED = Preempted("", "stopped after 2 epochs and 0 steps")


@pytest.mark.parametrize(
    ("stopped_by_user", "problem", "reason", "message"),
    [
        (False, SAVED, "Preempted", "step 40: this machine is being preempted; saved"),
        (True, SAVED, "StoppedByUser", "Stopped by you at step 40; the training state is saved. "
         "The next run resumes from here."),
        (True, UNSAVED, "StoppedByUser", "Stopped by you: stopped after 2 epochs and 0 steps."),
    ],
)  # fmt: skip
def test_the_last_event_names_who_stopped_the_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stopped_by_user: bool,
    problem: Preempted,
    reason: str,
    message: str,
) -> None:
    def interrupted(*_: Any) -> Any:
        raise problem

    monkeypatch.setattr(running, "train", interrupted)
    file = tmp_path / "stopped-by-user"
    if stopped_by_user:
        file.touch()
    identity = WorkerIdentity(index=0, hosts=("localhost:0",), attempt=1, incarnation="a")
    environment = {launch.STOPPED_BY_USER_FILE: str(file)}
    outcome = running.run(resolved_job(), identity, str(tmp_path / "run"), Preemption(lambda: None), environment)
    assert (outcome.reason, outcome.exit_code) == (reason, outcomes.PREEMPTED.exit_code)
    (written,) = (tmp_path / "run" / "events").iterdir()
    last = events.parse(written.read_text().splitlines()[-1])
    assert isinstance(last, events.Finished)
    assert (last.reason, last.message) == (reason, message)

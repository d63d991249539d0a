"""Export of a run to a server that fails as servers do: complete at the end, each value once, one run for all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from mptraining.cli.main import app
from mptraining.tracking.export import Description, Export, State, States, Status, follow, parameters, read_job
from mptraining_api import run_folder
from mptraining_api.events import Event, Finished, Progress
from mptraining_api.outputs.scalars import Scalar
from mptraining_api.problems import InvalidData
from mptraining_api.resolved_job import ResolvedJob
from tests.testbed.stub_trainer import summary

RunIn = Callable[..., Path]


class FakeServer:
    """Keeps the runs that it gets; `failures` are raised first, one a call."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.runs: dict[str, Description] = {}
        self.values: list[tuple[str, int, float]] = []
        self.statuses: list[Status] = []

    def begin(self, run: Description, state: State | None) -> State:
        self._fail()
        self.runs[run.key] = run
        return State(run_id=f"id of {run.key}", step=state.step if state else -1)

    def log(self, scalars: Sequence[Scalar]) -> None:
        self._fail()
        self.values += [(scalar.name, scalar.step, scalar.value) for scalar in scalars]

    def finish(self, status: Status, summary: dict[str, str]) -> None:
        self._fail()
        self.statuses.append(status)

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("connection refused")

    def steps(self, name: str = "loss") -> list[int]:
        return [step for each, step, _ in self.values if each == name]


def append(folder: Path, *events: Event) -> None:
    file = folder / run_folder.events_file(events[0].attempt, events[0].incarnation, 0, 0)
    with file.open("a") as opened:
        opened.writelines(event.to_json() + "\n" for event in events)


def finished(reason: str = "Succeeded", code: int = 0, *, attempt: int = 1, incarnation: str = "a-b") -> Finished:
    return Finished(
        time=9000.0, attempt=attempt, incarnation=incarnation, worker=0, reason=reason, exit_code=code, message="m"
    )


def send(export: Export, *, final: bool = True) -> None:
    export.read()
    export.send(final=final)


def sent(folder: Path) -> FakeServer:
    """Return a server to which the whole of a run folder was exported."""
    server = FakeServer()
    send(Export(str(folder), "fake", server))
    return server


def test_a_whole_run(run_in: RunIn) -> None:
    folder = run_in()
    append(folder, finished())
    server = sent(folder)
    (run,) = server.runs.values()
    assert run.parameters["training.optimizer.className"] == "Adam"
    assert run.tags["mptraining.run_folder"] == str(folder)
    assert server.steps() == list(range(1, 31))
    assert server.steps("val_loss") == [10, 20, 30]
    assert server.statuses == ["succeeded"]
    state = States.read((folder / "tracking.json").read_bytes()).states["fake"]
    assert state == State(run_id=f"id of {run.key}", step=30)
    again = sent(folder)
    assert again.values == [], "the server has all of it"
    assert again.runs.keys() == server.runs.keys(), "the same run"
    (folder / "tracking.json").write_text("{")
    assert sent(folder).runs.keys() == server.runs.keys(), "a damaged state: the server finds the run by its key"


def test_an_interrupted_export_continues(run_in: RunIn) -> None:
    server = FakeServer(failures=1)
    export = Export(str(run_in()), "fake", server)
    with pytest.raises(ConnectionError):
        send(export)
    export.send(final=True)
    assert server.steps() == list(range(1, 31))


def test_validation_that_a_script_reports_after_its_step_was_sent(run_in: RunIn) -> None:
    folder = run_in(done=False)
    server = FakeServer()
    export = Export(str(folder), "fake", server)
    send(export, final=False)
    last = server.steps()[-1]
    common = {"time": 8000.0, "attempt": 1, "incarnation": "a-b", "worker": 0, "epoch": 9}
    for metrics in ({"loss": 0.5}, {"loss": 0.5, "val_loss": 0.25}):
        append(folder, Progress(**common, step=last + 1, metrics=metrics))
        send(export, final=False)
    assert server.steps().count(last + 1) == 1
    assert server.steps("val_loss")[-1] == server.steps()[-1] == last + 1


def later(steps: int, first: int, begin: float = 5000, **more: Any) -> list[Event]:
    """Return the events of attempt 2, of another process."""
    events = summary(steps=steps, first=first, attempt=2, begin=begin)
    values = [more if event.kind == "Progress" else {} for event in events]
    return [
        event.model_copy(update={"incarnation": "c-d", **value}) for event, value in zip(events, values, strict=True)
    ]


def test_a_later_attempt_is_part_of_the_same_run(run_in: RunIn) -> None:
    folder = run_in(done=False)
    append(folder, finished("Preempted", 75))
    first = sent(folder)
    append(folder, *later(40, 20), finished(attempt=2, incarnation="c-d"))
    second = sent(folder)
    assert second.runs.keys() == first.runs.keys()
    assert first.steps() == list(range(1, 31))
    assert second.steps() == list(range(31, 41)), "a server's steps only grow"
    assert (first.statuses, second.statuses) == (["stopped"], ["succeeded"])


def test_after_the_fact_steps_that_were_trained_again_have_their_last_values(run_in: RunIn) -> None:
    folder = run_in(done=False)
    append(folder, *later(35, 20, metrics={"loss": 7.0}))
    server = sent(folder)
    assert server.steps() == list(range(1, 36))
    assert {value for name, step, value in server.values if name == "loss" and step > 20} == {7.0}


@pytest.mark.parametrize(
    ("events", "status"),
    [([], "running"), ([finished("ProgramFailed", 1)], "failed"), ([finished("PeerLost", 76)], "stopped")],
)
def test_the_status(run_in: RunIn, events: list[Event], status: Status) -> None:
    folder = run_in()
    if events:
        append(folder, *events)
    assert sent(folder).statuses == [status]


def test_following_waits_for_this_launch_and_ends_with_it(run_in: RunIn) -> None:
    """The folder has an earlier attempt's events; the server is down for a while."""
    folder = run_in(done=False)
    append(folder, finished("Preempted", 75))
    events = later(34, 30, 9500)
    server, said, waits = FakeServer(failures=2), [], []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1:
            assert not server.runs, "the launch has not begun to train"
            append(folder, *events[:3])
        if len(waits) == 5:
            end = finished(attempt=2, incarnation="c-d").model_copy(update={"time": 9999.0})
            append(folder, *events[3:], end)
        assert len(waits) < 20

    follow(Export(str(folder), "fake", server), incarnation="c-d", wait=wait, on_error=said.append)
    assert server.steps() == list(range(1, 35))
    assert server.statuses == ["succeeded"]
    assert said == ["ConnectionError: connection refused"], "each message once"


def test_a_server_that_is_down_at_the_end_does_not_hold_the_trainer(run_in: RunIn) -> None:
    folder = run_in(done=False)
    append(folder, finished())
    said: list[str] = []
    export = Export(str(folder), "fake", FakeServer(failures=1000))
    follow(export, incarnation="a-b", wait=lambda _: pytest.fail("waits"), on_error=said.append)
    assert len(said) == 1


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match="holds no events of a run"):
        sent(tmp_path)
    (tmp_path / "job.json").write_text("{")
    with pytest.raises(InvalidData, match=r"there is no job\.json in it that this version can read"):
        read_job(str(tmp_path))


def test_parameters_are_the_jobs_settings(run_in: RunIn) -> None:
    job = ResolvedJob.read((run_in() / "job.json").read_bytes())
    found = parameters(job)
    assert found["precision.policy"] == "float32"
    assert found["training.epochs"] == "5"
    assert found["data.train"].startswith('["')
    assert not [name for name in found if name.startswith(("choices", "placement"))]
    assert max(map(len, found.values())) <= 500


def test_mptj_track_writes_tensorboards_files(run_in: RunIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # TensorBoard reads without TensorFlow, whose import takes seconds, if this module exists.
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", ModuleType("notf"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    to = tmp_path / "board"
    shown = CliRunner().invoke(app, ["track", str(run_in()), "--to", "tensorboard", "--folder", str(to)])
    assert shown.exit_code == 0, shown
    reader = EventAccumulator(str(to / "validation"))
    reader.Reload()
    assert [each.step for each in reader.Scalars("loss")] == [10, 20, 30]


@pytest.mark.parametrize("server", ["mlflow", "wandb"])
def test_a_library_that_is_not_installed_is_named(run_in: RunIn, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    refused = CliRunner().invoke(app, ["track", str(run_in()), "--to", server])
    assert f"pip install 'mptraining[{server}]'" in str(refused.exception)

"""Of two attempts in one run folder only the newer one writes, whenever the older one resumes."""

from __future__ import annotations

import json

import pytest

from mptraining_api.launch import WorkerIdentity
from mptraining_api.problems import Problem, ResumeRefused, Superseded
from mptraining_storage import storage
from mptraining_storage.preconditions import StoredObject
from mptraining_trainer import fence


def identity(attempt: int, incarnation: str = "a", *, job: str = "", created: str = "") -> WorkerIdentity:
    return WorkerIdentity(
        index=0, hosts=("localhost:0",), attempt=attempt, incarnation=incarnation, job_uid=job, job_created=created
    )


OLD, NEW = {"job": "old", "created": "2026-11-23T10:00:00Z"}, {"job": "new", "created": "2026-11-23T11:00:00Z"}
LOCAL = {"created": "2026-11-23T11:00:00Z"}


@pytest.fixture(params=["disk", "bucket"])
def folder(request: pytest.FixtureRequest) -> str:
    if request.param == "disk":
        return f"{request.getfixturevalue('tmp_path')}/run/checkpoints"
    return f"{request.getfixturevalue('bucket')}/run/checkpoints"


def test_an_attempt_that_has_the_folder_may_write(folder: str) -> None:
    fence.claim(folder, identity(1, **NEW)).check()
    claim = json.loads(storage.read(f"{folder}/fence.json"))
    assert claim == {"version": 1, "attempt": 1, "incarnation": "a", "jobUid": "new", "jobCreated": NEW["created"]}


@pytest.mark.parametrize(
    ("earlier", "later", "error", "message"),
    [
        (identity(1), identity(2, "b"), Superseded, r"fence\.json: attempt 2 has taken over .* from attempt 1"),
        (identity(1), identity(1, "b"), Superseded, "another launch has taken over"),
        (identity(3, **OLD), identity(1, "b", **NEW), ResumeRefused, "the MPTrainingJob with uid new, created at 2026"),
        (identity(4, **OLD), identity(5, "b", **LOCAL), ResumeRefused, "a local run, started at 2026-11-23T11:00:00Z"),
    ],
    ids=["a newer attempt", "a later launch", "the job created again", "a local run"],
)
def test_the_later_one_takes_the_folder(
    folder: str, earlier: WorkerIdentity, later: WorkerIdentity, error: type[Problem], message: str
) -> None:
    loser, winner = fence.claim(folder, earlier), fence.claim(folder, later)
    with pytest.raises(error, match=message):
        loser.check()
    winner.check()
    storage.delete(f"{folder}/fence.json")
    with pytest.raises(Superseded):
        winner.check()


@pytest.mark.parametrize(
    ("later", "earlier", "error", "message"),
    [
        (identity(2), identity(1), Superseded, "attempt 2 has taken over"),
        (identity(1, "b", **NEW), identity(3, **OLD), ResumeRefused, "Give each job its own output folder"),
    ],
    ids=["an older attempt", "a late pod of the deleted job"],
)
def test_the_earlier_one_cannot_take_it_back(
    folder: str, later: WorkerIdentity, earlier: WorkerIdentity, error: type[Problem], message: str
) -> None:
    winner = fence.claim(folder, later)
    with pytest.raises(error, match=message):
        fence.claim(folder, earlier)
    winner.check()


def test_a_fence_that_is_damaged_or_of_an_older_version_is_replaced(folder: str) -> None:
    for content in (b"{", b'{"version": 1, "attempt": 21, "incarnation": "x"}'):
        storage.write(f"{folder}/fence.json", content)
        fence.claim(folder, identity(1, **NEW)).check()


def test_one_that_changes_between_read_and_write_is_read_again(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    look, others = storage.find, [identity(3, "c")]

    def find(uri: str) -> StoredObject | None:
        found = look(uri)
        if others:
            fence.claim(folder, others.pop())
        return found

    monkeypatch.setattr(storage, "find", find)
    with pytest.raises(Superseded, match="attempt 3"):
        fence.claim(folder, identity(2))

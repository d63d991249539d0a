"""Of two attempts in one run folder only the newer one writes, whenever the older one resumes."""

from __future__ import annotations

import json

import pytest

from mptraining_api.launch import WorkerIdentity
from mptraining_api.outcomes import SUPERSEDED, by_reason
from mptraining_api.problems import ResumeRefused, Superseded
from mptraining_records.storage import storage
from mptraining_trainer import fence


def identity(attempt: int, incarnation: str = "a", *, job: str = "", created: str = "") -> WorkerIdentity:
    return WorkerIdentity(
        index=0, hosts=("localhost:0",), attempt=attempt, incarnation=incarnation, job_uid=job, job_created=created
    )


@pytest.fixture(params=["disk", "bucket"])
def folder(request: pytest.FixtureRequest) -> str:
    if request.param == "disk":
        return f"{request.getfixturevalue('tmp_path')}/run/checkpoints"
    return f"{request.getfixturevalue('bucket')}/run/checkpoints"


def test_an_attempt_that_has_the_folder_may_write(folder: str) -> None:
    mine = fence.claim(folder, identity(1, job="flowers", created="2026-11-23T10:00:00Z"))
    mine.check()
    assert json.loads(storage.read(f"{folder}/fence.json")) == {
        "version": 1,
        "attempt": 1,
        "incarnation": "a",
        "jobUid": "flowers",
        "jobCreated": "2026-11-23T10:00:00Z",
    }


def test_a_newer_attempt_takes_it_from_an_older_one(folder: str) -> None:
    older = fence.claim(folder, identity(1))
    newer = fence.claim(folder, identity(2, "b"))
    with pytest.raises(
        Superseded, match=r"fence\.json: attempt 2 has taken over this run folder from attempt 1"
    ) as said:
        older.check()
    assert by_reason(said.value.reason) == SUPERSEDED
    newer.check()


def test_an_older_attempt_cannot_take_it_back(folder: str) -> None:
    newer = fence.claim(folder, identity(2))
    with pytest.raises(Superseded, match="attempt 2 has taken over"):
        fence.claim(folder, identity(1))
    newer.check()


def test_a_job_created_again_takes_over_from_the_deleted_one_at_its_first_attempt(folder: str) -> None:
    deleted = fence.claim(folder, identity(3, job="old", created="2026-11-23T10:00:00Z"))
    created_again = fence.claim(folder, identity(1, "b", job="new", created="2026-11-23T11:00:00Z"))
    created_again.check()
    with pytest.raises(ResumeRefused, match="the MPTrainingJob with uid new, created at 2026-11-23T11:00:00Z"):
        deleted.check()


def test_a_pod_of_the_deleted_job_that_starts_late_gets_nothing(folder: str) -> None:
    created_again = fence.claim(folder, identity(1, "b", job="new", created="2026-11-23T11:00:00Z"))
    with pytest.raises(ResumeRefused, match="Give each job its own output folder"):
        fence.claim(folder, identity(3, job="old", created="2026-11-23T10:00:00Z"))
    created_again.check()


def test_a_local_run_takes_over_from_a_job_created_before_it(folder: str) -> None:
    job = fence.claim(folder, identity(4, job="old", created="2026-11-23T10:00:00Z"))
    fence.claim(folder, identity(5, "b", created="2026-11-23T11:00:00Z")).check()
    with pytest.raises(ResumeRefused, match="a local run, started at 2026-11-23T11:00:00Z"):
        job.check()


def test_a_fence_of_an_older_version_counts_as_an_older_job(folder: str) -> None:
    storage.write(f"{folder}/fence.json", b'{"version": 1, "attempt": 21, "incarnation": "x"}')
    fence.claim(folder, identity(1, job="new", created="2026-11-23T11:00:00Z")).check()


def test_of_two_launches_of_one_attempt_the_later_has_it(folder: str) -> None:
    first = fence.claim(folder, identity(1, "a"))
    second = fence.claim(folder, identity(1, "b"))
    with pytest.raises(Superseded, match="another launch has taken over"):
        first.check()
    second.check()


def test_a_deleted_folder_has_no_owner(folder: str) -> None:
    mine = fence.claim(folder, identity(1))
    storage.delete(f"{folder}/fence.json")
    with pytest.raises(Superseded):
        mine.check()


def test_a_damaged_fence_is_replaced(folder: str) -> None:
    storage.write(f"{folder}/fence.json", b"{")
    fence.claim(folder, identity(1)).check()


def test_one_that_changes_between_read_and_write_is_read_again(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    look, others = storage.find, [identity(3, "c")]

    def find(uri: str) -> storage.StoredObject | None:
        found = look(uri)
        if others:
            fence.claim(folder, others.pop())
        return found

    monkeypatch.setattr(storage, "find", find)
    with pytest.raises(Superseded, match="attempt 3"):
        fence.claim(folder, identity(2))

"""The outbox: what is superseded is dropped, storage that is away is tried again, and nobody waits for it."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable

import pytest

from mptraining_api.problems import InvalidData, StorageFull, StorageUnavailable
from mptraining_storage.outbox import Outbox


class Storage:
    """Writes that hang until `answer` is called, each with the next of the given errors."""

    def __init__(self, *errors: Exception | None) -> None:
        self.written: list[str] = []
        self.begun = threading.Semaphore(0)
        self._answers = threading.Semaphore(0)
        self._errors = list(errors)

    def write(self, content: str) -> Callable[[], None]:
        def write() -> None:
            self.begun.release()
            assert self._answers.acquire(timeout=60)
            error = self._errors.pop(0) if self._errors else None
            if error is not None:
                raise error
            self.written.append(content)

        return write

    def answer(self, times: int = 1) -> None:
        self._answers.release(times)


AWAY = StorageUnavailable("gs://bucket", "HTTP 503")


def test_of_what_waits_the_newest_is_written() -> None:
    outbox, storage = Outbox(), Storage()
    outbox.put("checkpoint", storage.write("step 1"))
    storage.begun.acquire()
    for step in range(2, 1000):
        outbox.put("checkpoint", storage.write(f"step {step}"))
    outbox.put("profile", storage.write("profile"))
    storage.answer(3)
    outbox.wait("checkpoint")
    outbox.wait("profile")
    assert storage.written == ["step 1", "step 999", "profile"]


def test_what_replaces_a_withdrawn_write_has_its_turn() -> None:
    """During an outage, each turn takes as long as the retries of a request."""
    outbox, storage = Outbox(), Storage()
    outbox.put("events", storage.write("first events"))
    storage.begun.acquire()
    assert not outbox.withdraw("events"), "it has begun"
    outbox.put("checkpoint", storage.write("step 1"))
    outbox.put("events", storage.write("second events"))
    assert outbox.withdraw("checkpoint")
    outbox.put("checkpoint", storage.write("step 2"))
    storage.answer(3)
    outbox.wait("events")
    outbox.wait("checkpoint")
    assert storage.written == ["first events", "step 2", "second events"]


def test_storage_that_is_away_is_tried_again_without_an_error() -> None:
    outbox, storage = Outbox(), Storage(AWAY, AWAY)
    outbox.put("checkpoint", storage.write("step 1"))
    storage.answer(3)
    for _ in range(3):
        assert storage.begun.acquire(timeout=60)
    outbox.wait("checkpoint")
    assert storage.written == ["step 1"]
    # One that failed gives way to a newer one.
    outbox, storage = Outbox(), Storage(AWAY)
    outbox.put("checkpoint", storage.write("step 1"))
    storage.begun.acquire()
    outbox.put("checkpoint", storage.write("step 2"))
    storage.answer(2)
    outbox.wait("checkpoint")
    assert storage.written == ["step 2"]


def test_who_waits_gets_the_error_of_storage_that_stays_away() -> None:
    outbox, storage = Outbox(), Storage(AWAY)
    outbox.put("checkpoint", storage.write("step 1"))
    threading.Timer(0.1, storage.answer).start()
    with pytest.raises(StorageUnavailable):
        outbox.wait("checkpoint")
    assert storage.written == []


@pytest.mark.parametrize("error", [InvalidData("gs://b", "no permission"), StorageFull("/", "full"), KeyError("x")])
def test_an_error_that_no_retry_changes_is_raised_by_the_next_put(error: Exception) -> None:
    outbox, storage = Outbox(), Storage(error)
    outbox.put("checkpoint", storage.write("step 1"))
    storage.answer(2)
    outbox.drain(60)
    with pytest.raises(type(error)):
        outbox.put("checkpoint", storage.write("step 2"))
    outbox.put("checkpoint", storage.write("step 3"))
    outbox.wait("checkpoint")
    assert storage.written == ["step 3"]


def test_a_run_that_failed_does_not_wait_for_storage_that_hangs() -> None:
    outbox, storage = Outbox(), Storage()
    outbox.put("checkpoint", storage.write("step 1"))
    outbox.drain(0.05)
    assert storage.written == []
    storage.answer()
    outbox.wait("checkpoint")


def test_a_repeated_write_runs_at_intervals_and_once_more_at_the_end() -> None:
    outbox, calls, several = Outbox(), list[bool](), threading.Event()

    def write(last: bool) -> None:
        calls.append(last)
        if len(calls) == 3:
            several.set()

    end = outbox.repeat("log", write, "/runs/first", on_failure=pytest.fail, seconds=0.001)
    assert several.wait(60)
    end(60)
    assert (calls[-1], any(calls[:-1])) == (True, False)


@pytest.mark.parametrize(
    ("error", "message"),
    [(InvalidData("gs://a", "no permission"), "gs://a: no permission"), (KeyError("x"), "KeyError: 'x'")],
)
def test_an_error_is_reported_once_and_does_not_end_the_repetition(error: Exception, message: str) -> None:
    reports: list[str] = []
    calls = threading.Semaphore(0)

    def write(last: bool) -> None:
        calls.release()
        raise error

    end = Outbox().repeat("log", write, "/runs/first", on_failure=reports.append, seconds=0.001)
    for _ in range(3):
        calls.acquire()
    end(60)
    assert reports == [message]


def test_the_end_of_a_repetition_gives_up_after_a_time() -> None:
    stuck = threading.Event()
    end = Outbox().repeat("log", lambda _: bool(stuck.wait(60)) and None, "/a", on_failure=pytest.fail, seconds=0.001)
    end(0.05)
    stuck.set()
    end(60)


def test_what_was_written_is_not_kept_until_the_next_write() -> None:
    outbox, content = Outbox(), Storage()
    end = outbox.repeat("events", lambda last: None, "run", on_failure=pytest.fail, seconds=60)
    kept = weakref.ref(content)
    outbox.put("checkpoint", lambda content=content: None)  # type: ignore[misc]
    del content
    outbox.wait("checkpoint")
    assert kept() is None
    end()


def test_an_idle_outbox_has_no_thread() -> None:
    outbox = Outbox()
    before = threading.active_count()
    outbox.put("checkpoint", lambda: None)
    outbox.wait("checkpoint")
    for thread in threading.enumerate():
        if thread.name == "outbox":
            thread.join(60)
    assert threading.active_count() <= before


def test_a_forked_child_writes_nothing_and_does_not_hang() -> None:
    """The lock may be held in the parent at that moment."""
    outbox, storage = Outbox(), Storage()
    outbox.put("checkpoint", storage.write("step 1"))
    storage.begun.acquire()
    with outbox._changed:
        child = os.fork()
        if child == 0:
            outbox.put("checkpoint", storage.write("step 2"))
            end = outbox.repeat("log", lambda _: None, "/a", on_failure=lambda _: None)
            end(60)
            outbox.wait("checkpoint")
            outbox.drain(60)
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    storage.answer()
    outbox.wait("checkpoint")
    assert storage.written == ["step 1"]

"""`status.progress` of a worker's reports: its fields, when it is written, and what happens after a failed write."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining_api import events
from mptraining_api.kubernetes_api import ApiProblem
from mptraining_api.status import Metric, Progress, format_time
from mptraining_operator.progress.status import MOST_METRICS, Report, to_status
from mptraining_operator.progress.writer import ProgressWriter, Schedule
from mptraining_operator.runtime.values import Key

KEY = Key("team-a", "flowers")
# 2026-11-21T00:00:00Z
NOW = 1_795_219_200.0


def at(seconds: float) -> str:
    return f"2026-11-21T00:{int(seconds) // 60:02}:{int(seconds) % 60:02}Z"


def progress_report(step: int, *, attempt: int = 1, total: int | None = 100, **more: Any) -> events.Progress:
    more = {"metrics": {"loss": 0.5}, "epoch": 1, **more}
    return events.Progress(time=1.0, attempt=attempt, incarnation="pod", worker=0, step=step, total_steps=total, **more)


def finished(code: int = 0, *, attempt: int = 1, **more: Any) -> events.Finished:
    fields: dict[str, Any] = {"reason": "Succeeded" if code == 0 else "ProgramFailed", "message": "", **more}
    return events.Finished(time=2.0, attempt=attempt, incarnation="pod", worker=0, exit_code=code, **fields)


def test_a_report_becomes_a_status() -> None:
    event = progress_report(
        33,
        epoch=2,
        metrics={"loss": 0.1, "val_loss": 0.123456789},
        examples_per_second=1234.5,
        estimated_remaining_seconds=12.6,
        input_bound_percent=3.5,
        loss_scale=32768.0,
        device_utilization_percent=97.5,
        device_memory_used_bytes=12 * 2**30,
        device_memory_total_bytes=16 * 2**30,
    )
    assert to_status(event, None, NOW).to_document() == {
        "attempt": 1,
        "updateTime": at(0),
        "stepTime": at(0),
        "step": 33,
        "totalSteps": 100,
        "epoch": 2,
        "percentComplete": 33,
        "examplesPerSecond": 1234.5,
        "estimatedRemainingSeconds": 13,
        "inputBoundPercent": 3.5,
        "lossScale": 32768.0,
        "deviceUtilizationPercent": 97.5,
        "deviceMemoryUsedBytes": 12 * 2**30,
        "metrics": [{"name": "loss", "value": "0.1"}, {"name": "val_loss", "value": "0.123457"}],
    }


@pytest.mark.parametrize(
    ("step", "total", "percent"),
    [(0, 100, 0), (199, 200, 99), (200, 200, 100), (300, 200, 100), (-5, 200, 0), (5, None, None), (5, 0, None)],
)
def test_percent_is_rounded_down_and_bounded(step: int, total: int | None, percent: int | None) -> None:
    assert to_status(progress_report(step, total=total), None, NOW).percent_complete == percent


def test_the_time_of_the_step_moves_only_with_the_step() -> None:
    first = to_status(progress_report(5), None, NOW)
    second = to_status(progress_report(5), first, NOW + 20)
    third = to_status(progress_report(6), second, NOW + 40)
    back = to_status(progress_report(4), third, NOW + 60)
    times = [(each.update_time, each.step_time) for each in (first, second, third, back)]
    assert times == [(at(0), at(0)), (at(20), at(0)), (at(40), at(40)), (at(60), at(40))]


def test_what_a_report_does_not_say_is_carried_over_within_an_attempt() -> None:
    first = to_status(progress_report(50, precision="mixed_bfloat16", recoveries=0, loss_scale=8.0), None, NOW)
    assert (first.precision, first.recoveries) == ("mixed_bfloat16", 0)
    later = to_status(progress_report(60, precision="float32", recoveries=2), first, NOW)
    silent = to_status(progress_report(70), later, NOW)
    assert (silent.precision, silent.recoveries) == ("float32", 2)
    found = to_status(progress_report(40, attempt=2), silent, NOW + 20)
    assert (found.attempt, found.step, found.step_time) == (2, 40, at(20))
    assert (found.loss_scale, found.precision, found.recoveries) == (None, None, None)


def test_the_end_keeps_fields_that_it_lacks() -> None:
    before = to_status(
        progress_report(90, epoch=3, examples_per_second=10.0, estimated_remaining_seconds=9.0), None, NOW
    )
    expected = before.to_document() | {"updateTime": at(20)}
    del expected["estimatedRemainingSeconds"]
    assert (expected["step"], expected["percentComplete"], expected["epoch"]) == (90, 90, 3)
    assert to_status(finished(1), before, NOW + 20).to_document() == expected
    done = to_status(finished(step=100, metrics={"accuracy": 0.9}), before, NOW + 20)
    assert (done.step, done.percent_complete, done.estimated_remaining_seconds) == (100, 100, 0)
    assert done.metrics == [Metric(name="accuracy", value="0.9")]
    assert to_status(finished(2), None, NOW).to_document() == {"attempt": 1, "updateTime": at(0)}
    # A script does not report its total steps: it is complete when it has succeeded.
    script = to_status(progress_report(90, total=None), None, NOW)
    percents = [to_status(finished(code), script, NOW).percent_complete for code in (1, 0)]
    assert (script.percent_complete, percents) == (None, [None, 100])


def test_until_when_a_model_is_kept_is_counted_from_the_first_report_of_the_end() -> None:
    first = to_status(finished(kept_seconds=600.0), to_status(progress_report(100), None, NOW), NOW + 20)
    assert first.model_kept_until == "2026-11-21T00:10:20Z"
    assert to_status(finished(kept_seconds=600.0), first, NOW + 30).model_kept_until == "2026-11-21T00:10:20Z"
    assert to_status(finished(1, kept_seconds=600.0), None, NOW).model_kept_until is None
    assert to_status(finished(kept_seconds=1e300), None, NOW).model_kept_until == "2036-11-18T00:00:00Z"
    Progress.parse(first.to_document())


def test_metrics_fit_the_schema() -> None:
    many = {f"m{number}": 1.0 for number in range(200)} | {"x" * 64: 1.0, "": 1.0, "loss": math.nan}
    found = to_status(progress_report(1, metrics=many), None, NOW).metrics or []
    assert len(found) == MOST_METRICS
    assert found[0] == Metric(name="loss", value="NaN")


_WILD = st.integers(-(10**20), 10**20) | st.floats(allow_nan=True, allow_infinity=True)


@given(
    step=st.integers(-(10**20), 10**20),
    total=st.none() | st.integers(-5, 10**20),
    value=_WILD,
    names=st.lists(st.text(max_size=80), max_size=80),
)
def test_no_report_makes_a_status_that_the_api_server_refuses(
    step: int, total: int | None, value: float, names: list[str]
) -> None:
    numbers = ("examples_per_second", "estimated_remaining_seconds", "input_bound_percent", "loss_scale")
    report = events.Progress.model_construct(
        time=1.0,
        attempt=1,
        incarnation="",
        worker=0,
        step=step,
        total_steps=total,
        epoch=step,
        metrics={name: float(value) for name in names},
        device_memory_used_bytes=step,
        device_memory_total_bytes=step,
        **{name: float(value) for name in (*numbers, "device_utilization_percent")},
    )
    # Strict about every bound.
    Progress.parse(to_status(report, None, NOW).to_document())


def offer(schedule: Schedule, name: str, report: Report, now: float, previous: Progress | None = None) -> None:
    schedule.offer(Key("n", name), f"uid of {name}", report, previous, NOW + now)


def take(schedule: Schedule, now: float) -> list[tuple[str, int | None]]:
    """Return all reports that are due."""
    found = []
    while schedule.next()[0] <= NOW + now:
        key, progress = schedule.take(schedule.next()[1], NOW + now)
        found.append((key.name, progress.step))
    return found


def test_a_job_is_written_at_once_and_then_every_fifteen_seconds_with_its_newest_report() -> None:
    schedule, written = Schedule(15), []
    for second in range(0, 59):
        offer(schedule, "a", progress_report(second), second)
        written += take(schedule, second)
    assert written == [("a", 0), ("a", 15), ("a", 30), ("a", 45)]
    assert (schedule.next()[0], len(schedule)) == (NOW + 60, 1)
    assert take(schedule, 60) == [("a", 58)]
    assert (schedule.next(), len(schedule)) == ((math.inf, ""), 0)


def test_a_write_of_another_replica_counts_too() -> None:
    schedule = Schedule(15)
    offer(schedule, "a", progress_report(1), 100, Progress(attempt=1, update_time=format_time(NOW + 92)))
    assert schedule.next()[0] == NOW + 107
    # A replica whose clock is ahead delays no job for longer than the minimum.
    offer(schedule, "b", progress_report(1), 100, Progress(attempt=1, update_time=format_time(NOW + 10_000)))
    assert take(schedule, 114) == [("a", 1)]
    assert take(schedule, 115) == [("b", 1)]


def test_the_last_report_is_written_first_and_without_delay_but_only_once() -> None:
    schedule = Schedule(15)
    offer(schedule, "a", progress_report(1), 0)
    assert take(schedule, 0) == [("a", 1)]
    offer(schedule, "b", progress_report(2), 1)
    offer(schedule, "a", finished(step=100), 2)
    assert take(schedule, 2) == [("a", 100), ("b", 2)]
    offer(schedule, "a", finished(step=99), 3)
    assert take(schedule, 16) == []
    assert take(schedule, 17) == [("a", 99)]
    # Another attempt has a last report of its own.
    offer(schedule, "a", finished(step=100, attempt=2), 18)
    assert take(schedule, 18) == [("a", 100)]


def test_a_job_that_was_created_again_under_its_name_is_another_job() -> None:
    schedule = Schedule(15)
    offer(schedule, "a", finished(step=100), 0)
    take(schedule, 0)
    schedule.offer(Key("n", "a"), "another uid", progress_report(1), None, NOW + 1)
    schedule.retry("uid of a", NOW + 15)
    assert take(schedule, 1) == [("a", 1)]


def test_memory_is_bounded() -> None:
    schedule = Schedule(15, most_jobs=3)
    for number in (0, 1, 2, 0, 3):
        offer(schedule, f"job-{number}", progress_report(1), number)
    assert sorted(take(schedule, 100)) == [("job-0", 1), ("job-2", 1), ("job-3", 1)]


@given(st.lists(st.tuples(st.floats(0, 3), st.sampled_from("abc"), st.booleans(), st.booleans()), max_size=60))
def test_the_newest_report_of_each_job_is_written_in_the_end(script: list[tuple[float, str, bool, bool]]) -> None:
    schedule, now, newest = Schedule(5), 0.0, dict[str, int]()
    done: dict[str, int | None] = {}
    for step, (pause, name, last, fails) in enumerate(script):
        now += pause
        offer(schedule, name, finished(step=step) if last else progress_report(step, total=None), now)
        newest[name] = step
        if schedule.next()[0] <= NOW + now:
            uid = schedule.next()[1]
            key, progress = schedule.take(uid, NOW + now)
            if fails:
                schedule.retry(uid, NOW + now + 5)
            else:
                done[key.name] = progress.step
    done |= dict(take(schedule, now + 10))
    assert done == newest
    assert len(schedule) == 0


class ApiServer:
    """Raises the given problems first, then keeps what is written."""

    def __init__(self, *problems: Exception) -> None:
        self.problems = list(problems)
        self.tries = 0
        self.written: list[tuple[Key, str, dict[str, Any]]] = []
        self.changed = threading.Condition()

    def __call__(self, key: Key, uid: str, progress: dict[str, Any]) -> None:
        with self.changed:
            self.tries += 1
            self.changed.notify_all()
            if self.problems:
                raise self.problems.pop(0)
            self.written.append((key, uid, progress))

    def wait(self, *, written: int = 0, tries: int = 0) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.written) >= written and self.tries >= tries, 60)

    @property
    def steps(self) -> list[int]:
        return [progress["step"] for _, _, progress in self.written]


@contextmanager
def writing(server: ApiServer, per_second: float = 1000) -> Iterator[tuple[ProgressWriter, list[float]]]:
    clock = [NOW]
    writer = ProgressWriter(server, lambda: clock[0], 15, per_second)
    writer.start()
    try:
        yield writer, clock
    finally:
        writer.stop(60)


@pytest.mark.parametrize(
    "problem", [*(ApiProblem(status, "Reason", "words") for status in (0, 409, 429, 500)), ConnectionError("no answer")]
)
def test_a_write_that_may_succeed_later_is_retried_with_the_newest_report(problem: Exception) -> None:
    server = ApiServer(problem)
    with writing(server) as (writer, clock):
        writer.offer(KEY, "uid", progress_report(1), None)
        server.wait(tries=1)
        until = time.monotonic() + 60
        while not len(writer._schedule):
            assert time.monotonic() < until
            time.sleep(0.001)
        clock[0] += 15
        # Wakes the thread, which does not see this clock move.
        writer.offer(KEY, "uid", progress_report(2), None)
        server.wait(written=1)
    assert server.steps == [2]


@pytest.mark.parametrize("status", [404, 422])
def test_a_rejected_write_is_dropped(status: int) -> None:
    server = ApiServer(ApiProblem(status, "Reason", "words"))
    with writing(server) as (writer, _):
        writer.offer(KEY, "uid", finished(1), None)
        server.wait(tries=1)
    assert (server.written, server.tries, len(writer._schedule)) == ([], 1, 0)


def test_a_report_is_added_to_the_newer_of_the_observed_progress_and_the_last_one_from_here() -> None:
    schedule, times = Schedule(5), []
    for now, report, previous in (
        (0, progress_report(5), None),
        # The cache still has the previous one.
        (60, progress_report(5), Progress(attempt=1, step=4, step_time=at(0), update_time=at(0))),
        # Another replica has received a later report.
        (120, progress_report(7), Progress(attempt=1, step=7, step_time=at(70), update_time=at(70))),
    ):
        offer(schedule, "a", report, now, previous)
        times.append(schedule.take(schedule.next()[1], NOW + now)[1].step_time)
    assert times == [at(0), at(0), at(70)]

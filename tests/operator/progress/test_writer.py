"""What of a worker's reports reaches `status.progress`, when, and what becomes of a write that fails."""

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
from mptraining_api.status import Metric, Progress
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.progress.status import MOST_METRICS, Rank, Report, rank, to_status
from mptraining_operator.progress.writer import ProgressWriter, Schedule, Write

KEY = Key("team-a", "flowers")
# 2026-11-21T00:00:00Z
NOW = 1_795_219_200.0


def at(seconds: float) -> str:
    return f"2026-11-21T00:{int(seconds) // 60:02}:{int(seconds) % 60:02}Z"


def said(step: int, *, attempt: int = 1, total: int | None = 100, **more: Any) -> events.Progress:
    more = {"metrics": {"loss": 0.5}, "epoch": 1, **more}
    return events.Progress(time=1.0, attempt=attempt, incarnation="pod", worker=0, step=step, total_steps=total, **more)


def finished(code: int = 0, *, attempt: int = 1, **more: Any) -> events.Finished:
    fields: dict[str, Any] = {"reason": "Succeeded" if code == 0 else "ProgramFailed", "message": "", **more}
    return events.Finished(time=2.0, attempt=attempt, incarnation="pod", worker=0, exit_code=code, **fields)


def test_a_report_becomes_a_status() -> None:
    event = said(
        33,
        epoch=2,
        metrics={"loss": 0.1, "val_loss": 0.123456789},
        examples_per_second=1234.5,
        estimated_remaining_seconds=12.6,
        input_bound_percent=3.5,
        loss_scale=32768.0,
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
        "metrics": [{"name": "loss", "value": "0.1"}, {"name": "val_loss", "value": "0.123457"}],
    }


@pytest.mark.parametrize(
    ("step", "total", "percent"),
    [(0, 100, 0), (199, 200, 99), (200, 200, 100), (300, 200, 100), (-5, 200, 0), (5, None, None), (5, 0, None)],
)
def test_percent_is_rounded_down_and_bounded(step: int, total: int | None, percent: int | None) -> None:
    assert to_status(said(step, total=total), None, NOW).percent_complete == percent


def test_the_time_of_the_step_moves_only_with_the_step() -> None:
    first = to_status(said(5), None, NOW)
    second = to_status(said(5), first, NOW + 20)
    third = to_status(said(6), second, NOW + 40)
    back = to_status(said(4), third, NOW + 60)
    times = [(each.update_time, each.step_time) for each in (first, second, third, back)]
    assert times == [(at(0), at(0)), (at(20), at(0)), (at(40), at(40)), (at(60), at(40))]


def test_another_attempt_begins_anew() -> None:
    before = to_status(said(50, loss_scale=8.0), None, NOW).model_copy(update={"recoveries": 2})
    after = to_status(said(40, attempt=2), before, NOW + 20)
    assert (after.attempt, after.step, after.step_time, after.loss_scale, after.recoveries) == (
        2,
        40,
        at(20),
        None,
        None,
    )


def test_the_policy_in_force_and_the_ways_back_come_from_the_reports() -> None:
    first = to_status(said(50, precision="mixed_bfloat16", recoveries=0), None, NOW)
    assert (first.precision, first.recoveries) == ("mixed_bfloat16", 0)
    later = to_status(said(60, precision="float32", recoveries=2), first, NOW)
    assert (later.precision, later.recoveries) == ("float32", 2)
    silent = to_status(said(70), later, NOW)
    assert (silent.precision, silent.recoveries) == ("float32", 2), "what a report does not say is carried over"


def test_what_no_report_says_is_carried_over() -> None:
    before = Progress(attempt=1, step=1, recoveries=2, precision="mixed_float16")
    after = to_status(said(2), before, NOW)
    assert (after.recoveries, after.precision) == (2, "mixed_float16")


def test_the_end_keeps_what_it_does_not_say() -> None:
    before = to_status(said(90, epoch=3, examples_per_second=10.0, estimated_remaining_seconds=9.0), None, NOW)
    failed = to_status(finished(1), before, NOW + 20)
    expected = before.to_document() | {"updateTime": at(20)}
    del expected["estimatedRemainingSeconds"]
    assert failed.to_document() == expected
    assert (failed.step, failed.percent_complete, failed.epoch, failed.estimated_remaining_seconds) == (90, 90, 3, None)
    assert failed.metrics == [Metric(name="loss", value="0.5")]
    done = to_status(finished(step=100, metrics={"accuracy": 0.9}), before, NOW + 20)
    assert (done.step, done.percent_complete, done.estimated_remaining_seconds) == (100, 100, 0)
    assert done.metrics == [Metric(name="accuracy", value="0.9")]


def test_a_script_is_complete_when_it_has_succeeded() -> None:
    before = to_status(said(90, total=None), None, NOW)
    assert before.percent_complete is None
    assert to_status(finished(1), before, NOW).percent_complete is None
    assert to_status(finished(0), before, NOW).percent_complete == 100


def test_an_end_without_a_word_before_it() -> None:
    assert to_status(finished(2), None, NOW).to_document() == {"attempt": 1, "updateTime": at(0)}


def test_metrics_fit_the_schema() -> None:
    many = {f"m{number}": 1.0 for number in range(200)} | {"x" * 64: 1.0, "": 1.0, "loss": 2.0}
    found = to_status(said(1, metrics=many), None, NOW).metrics or []
    assert len(found) == MOST_METRICS
    assert found[0] == Metric(name="loss", value="2")


def test_a_number_that_is_none_is_no_metric() -> None:
    report = said(1).model_copy(update={"metrics": {"loss": math.nan, "accuracy": 0.5}})
    assert to_status(report, None, NOW).metrics == [Metric(name="accuracy", value="0.5")]


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
    report = events.Progress.model_construct(
        time=1.0,
        attempt=1,
        incarnation="",
        worker=0,
        step=step,
        total_steps=total,
        epoch=step,
        metrics={name: float(value) for name in names},
        examples_per_second=float(value),
        estimated_remaining_seconds=float(value),
        input_bound_percent=float(value),
        loss_scale=float(value),
    )
    # Strict about every bound.
    Progress.parse(to_status(report, None, NOW).to_document())


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (said(99), Rank.UNDER_WAY),
        (said(100), Rank.LAST_STEP),
        (said(5, total=None), Rank.UNDER_WAY),
        (finished(75), Rank.FINISHED),
    ],
)
def test_how_near_its_end_a_report_is(report: Report, expected: Rank) -> None:
    assert rank(report) == expected


def offered(schedule: Schedule, name: str, step: int, now: float, rank: Rank = Rank.UNDER_WAY, uid: str = "u") -> None:
    schedule.offer(Key("n", name), uid, Progress(attempt=1, step=step), rank, now, written=-math.inf)


def taken(schedule: Schedule, now: float) -> list[tuple[str, int | None]]:
    found = []
    while (write := schedule.take(now)) is not None:
        found.append((write.key.name, write.progress.step))
    return found


def test_a_job_is_written_at_once_and_then_at_most_every_fifteen_seconds() -> None:
    schedule = Schedule(15, 10)
    written = []
    for second in range(0, 61):
        offered(schedule, "a", second, second)
        written += taken(schedule, second)
    assert written == [("a", 0), ("a", 15), ("a", 30), ("a", 45), ("a", 60)]


def test_the_newest_report_wins_and_is_written_when_nothing_follows() -> None:
    schedule = Schedule(15, 10)
    for second in range(4):
        offered(schedule, "a", second, second)
        taken(schedule, second)
    assert schedule.wake_at(4) == 15
    assert taken(schedule, 14.9) == []
    assert taken(schedule, 15) == [("a", 3)]
    assert schedule.wake_at(15) == math.inf


def test_another_replica_s_write_counts_too() -> None:
    schedule = Schedule(15, 10)
    schedule.offer(KEY, "u", Progress(step=1), Rank.UNDER_WAY, 100, written=92)
    assert schedule.wake_at(100) == 107
    # A clock ahead of ours holds nobody back for longer than the minimum.
    schedule.offer(Key("n", "b"), "u", Progress(step=1), Rank.UNDER_WAY, 100, written=10_000)
    assert [len(taken(schedule, second)) for second in (107, 114, 115)] == [1, 0, 1]


def test_all_jobs_together_keep_the_rate_and_take_turns() -> None:
    schedule = Schedule(15, 2)
    for number in range(10):
        offered(schedule, f"job-{number}", 1, number / 100)
    assert len(taken(schedule, 1)) == 2
    order = [name for second in range(2, 6) for name, _ in taken(schedule, second)]
    assert order == [f"job-{number}" for number in range(2, 10)]


def test_who_speaks_often_does_not_lose_its_place() -> None:
    schedule = Schedule(15, 1)
    offered(schedule, "first", 1, 0)
    assert taken(schedule, 0) == [("first", 1)]
    offered(schedule, "a", 1, 0.1)
    offered(schedule, "b", 1, 0.2)
    offered(schedule, "a", 2, 0.3)
    assert taken(schedule, 1) == [("a", 2)]
    assert taken(schedule, 2) == [("b", 1)]


def test_the_last_reports_go_ahead_and_the_others_pay() -> None:
    schedule = Schedule(15, 1)
    for number in range(3):
        offered(schedule, f"job-{number}", 1, 0)
    taken(schedule, 0)
    for number in range(2):
        offered(schedule, f"end-{number}", 9, 0.1, Rank.FINISHED)
    assert taken(schedule, 0.1) == [("end-0", 9), ("end-1", 9)]
    # Two were drawn beyond the bottom; the third second has one again.
    assert [len(taken(schedule, second)) for second in (1, 2, 3, 4)] == [0, 0, 1, 1]


def test_the_last_report_does_not_wait_for_the_job_s_own_interval() -> None:
    schedule = Schedule(15, 10)
    offered(schedule, "a", 1, 0)
    taken(schedule, 0)
    offered(schedule, "a", 2, 1)
    offered(schedule, "a", 100, 2, Rank.LAST_STEP)
    assert taken(schedule, 2) == [("a", 100)]
    offered(schedule, "a", 101, 3, Rank.FINISHED)
    assert taken(schedule, 3) == [("a", 101)]
    # Whoever says its end again and again waits like others.
    offered(schedule, "a", 102, 4, Rank.FINISHED)
    assert taken(schedule, 4) == []
    assert taken(schedule, 18) == [("a", 102)]


def test_a_failed_write_is_tried_again_with_what_is_newest() -> None:
    schedule = Schedule(15, 10)
    offered(schedule, "a", 1, 0)
    write = schedule.take(0)
    assert write is not None
    offered(schedule, "a", 2, 0.5)
    schedule.retry(write, 0.5, None)
    assert taken(schedule, 1.4) == []
    again = schedule.take(1.5)
    assert again is not None
    assert (again.progress.step, again.tries) == (2, 1)
    schedule.retry(again, 2, 30)
    assert schedule.wake_at(2) == 32
    waits = []
    now, failing = 32.0, schedule.take(32)
    for _ in range(6):
        assert failing is not None
        schedule.retry(failing, now, None)
        waits.append(schedule.wake_at(now) - now)
        now = schedule.wake_at(now)
        failing = schedule.take(now)
    assert waits == [4, 8, 16, 32, 60, 60]


def test_a_failed_last_report_still_goes_ahead() -> None:
    schedule = Schedule(15, 1)
    offered(schedule, "a", 9, 0, Rank.FINISHED)
    write = schedule.take(0)
    assert write is not None
    # Said again meanwhile, which by itself would wait.
    offered(schedule, "a", 10, 0, Rank.FINISHED)
    offered(schedule, "b", 1, 0)
    schedule.retry(write, 0, None)
    assert taken(schedule, 1) == [("a", 10)]
    assert schedule.take_final_writes() == []


def test_a_job_made_anew_under_its_name_owes_nothing_to_the_old_one() -> None:
    schedule = Schedule(15, 10)
    offered(schedule, "a", 100, 0, Rank.FINISHED)
    old = schedule.take(0)
    assert old is not None
    offered(schedule, "a", 1, 1, uid="new")
    schedule.retry(old, 1, None)
    schedule.forget(old.key, old.uid)
    assert taken(schedule, 1) == [("a", 1)]
    assert schedule.last_report(Key("n", "a"), "u") is None


def test_memory_is_bounded() -> None:
    schedule = Schedule(15, 1000, most_known=3)
    for number in range(5):
        offered(schedule, f"job-{number}", 1, 0)
    taken(schedule, 0)
    assert [schedule.last_report(Key("n", f"job-{number}"), "u") is None for number in range(5)] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert len(schedule) == 0


@given(
    st.lists(
        st.tuples(st.floats(0, 3), st.sampled_from("abc"), st.sampled_from(list(Rank)), st.sampled_from([True, False])),
        max_size=60,
    )
)
def test_whatever_happens_the_newest_of_each_job_is_written_in_the_end(
    script: list[tuple[float, str, Rank, bool]],
) -> None:
    schedule = Schedule(5, 1)
    now, newest = 0.0, {}
    done: dict[str, int | None] = {}
    ordinary: dict[str, float] = {}

    def turn(fails: bool) -> None:
        write: Write | None = schedule.take(now)
        if write is None:
            return
        name = write.key.name
        if fails:
            schedule.retry(write, now, None)
            return
        if not write.rank:
            assert now >= ordinary.get(name, -math.inf) + 5
        ordinary[name] = now
        done[name] = write.progress.step

    for number, (pause, name, how, fails) in enumerate(script):
        now += pause
        offered(schedule, name, number, now, how)
        newest[name] = number
        turn(fails)
    for _ in range(1000):
        wake = schedule.wake_at(now)
        if wake == math.inf:
            break
        now = max(now, wake)
        turn(False)
    assert done == newest
    assert len(schedule) == 0


class Problem(Exception):
    """As cluster.ApiProblem."""

    def __init__(self, status: int, retry_after: float | None = None) -> None:
        super().__init__(f"answer {status}")
        self.status = status
        self.retry_after = retry_after


class ApiServer:
    """Answers with the given problems first."""

    def __init__(self, *problems: Exception) -> None:
        self.problems = list(problems)
        self.tries = 0
        self.written: list[tuple[Key, str, dict[str, Any]]] = []
        self.heard = threading.Condition()

    def __call__(self, key: Key, uid: str, progress: dict[str, Any]) -> None:
        with self.heard:
            self.tries += 1
            self.heard.notify_all()
            if self.problems:
                raise self.problems.pop(0)
            self.written.append((key, uid, progress))

    def wait(self, *, written: int = 0, tries: int = 0) -> None:
        with self.heard:
            assert self.heard.wait_for(lambda: len(self.written) >= written and self.tries >= tries, 60)

    def comes_back(self, writer: ProgressWriter) -> None:
        """Waits until the failed write is due again, by the clock as it still is."""
        until = time.monotonic() + 60
        while not writer.waiting:
            assert time.monotonic() < until
            time.sleep(0.001)

    @property
    def steps(self) -> list[int]:
        return [progress["step"] for _, _, progress in self.written]


@contextmanager
def writing(server: ApiServer, seconds: float = 15) -> Iterator[tuple[ProgressWriter, list[float]]]:
    clock = [NOW]
    writer = ProgressWriter(server, lambda: clock[0], seconds, 100)
    writer.start()
    try:
        yield writer, clock
    finally:
        writer.stop(60)


def test_the_thread_writes_and_flushes_the_last_ones_when_it_is_stopped() -> None:
    server = ApiServer()
    with writing(server) as (writer, _):
        writer.offer(KEY, "uid", said(1), None)
        server.wait(written=1)
        writer.offer(KEY, "uid", said(2), None)
        assert writer.waiting == 1
        writer.offer(KEY, "uid", said(100), None)
        server.wait(written=2)
        writer.offer(KEY, "uid", said(100), None)
    assert server.steps == [1, 100]
    assert server.written[0][:2] == (KEY, "uid")
    assert writer.written == 2


def test_what_failed_at_the_end_is_tried_once_more() -> None:
    server = ApiServer(Problem(503, 60))
    with writing(server) as (writer, _):
        writer.offer(KEY, "uid", finished(step=7), None)
        server.wait(tries=1)
    assert server.steps == [7]


def test_a_clock_that_moves_on_lets_the_next_report_through() -> None:
    server = ApiServer()
    with writing(server) as (writer, clock):
        writer.offer(KEY, "uid", said(1), None)
        server.wait(written=1)
        clock[0] += 15
        writer.offer(KEY, "uid", said(2), None)
        server.wait(written=2)
    assert server.written[1][2]["updateTime"] == at(15)


@pytest.mark.parametrize("status", [0, 408, 409, 429, 500, 503])
def test_troubles_that_pass_are_tried_again(status: int) -> None:
    server = ApiServer(Problem(status))
    with writing(server) as (writer, clock):
        writer.offer(KEY, "uid", said(1), None)
        server.wait(tries=1)
        server.comes_back(writer)
        clock[0] += 60
        writer.offer(KEY, "uid", said(2), None)
        server.wait(written=1)
    assert server.steps == [2]


def test_no_answer_at_all_is_tried_again() -> None:
    server = ApiServer(ConnectionError("refused"))
    with writing(server) as (writer, clock):
        writer.offer(KEY, "uid", said(1), None)
        server.wait(tries=1)
        server.comes_back(writer)
        clock[0] += 60
        writer.offer(KEY, "uid", said(2), None)
        server.wait(written=1)


@pytest.mark.parametrize("status", [400, 403, 404, 422])
def test_what_can_never_be_written_is_given_up(status: int) -> None:
    server = ApiServer(Problem(status))
    with writing(server) as (writer, _):
        writer.offer(KEY, "uid", finished(1), None)
        server.wait(tries=1)
    assert server.written == []
    assert server.tries == 1
    assert writer.waiting == 0


def test_a_conflict_that_lasts_means_that_the_job_is_gone() -> None:
    server = ApiServer(*(Problem(409) for _ in range(6)))
    with writing(server) as (writer, clock):
        writer.offer(KEY, "uid", said(1), None)
        for tries in range(1, 7):
            server.wait(tries=tries)
            if tries < 6:
                server.comes_back(writer)
                clock[0] += 60
                # Wakes the thread, which does not see this clock move.
                writer.offer(KEY, "uid", said(1), None)
        assert writer.waiting == 0
    assert server.written == []


def test_the_newest_of_the_cache_and_of_what_was_heard_here_is_built_upon() -> None:
    server = ApiServer()
    with writing(server, 5) as (writer, clock):
        writer.offer(KEY, "uid", said(5), None)
        server.wait(written=1)
        clock[0] += 60
        # The cache still shows what was before.
        writer.offer(KEY, "uid", said(5), Progress(attempt=1, step=4, step_time=at(0), update_time=at(0)))
        server.wait(written=2)
        clock[0] += 60
        # Another replica has heard more.
        writer.offer(KEY, "uid", said(7), Progress(attempt=1, step=7, step_time=at(70), update_time=at(70)))
        server.wait(written=3)
    assert [progress["stepTime"] for _, _, progress in server.written] == [at(0), at(0), at(70)]


def test_stopping_what_never_started_is_no_error() -> None:
    ProgressWriter(ApiServer(), lambda: NOW, 15, 10).stop()

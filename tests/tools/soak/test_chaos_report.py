"""The table of chaos: what was done, what became of it, and every complaint."""

from __future__ import annotations

from tests.soak.chaos import report
from tests.soak.chaos.__main__ import in_rounds
from tests.soak.chaos.record import Change, JobSeen, Step
from tests.soak.chaos.run import Ran
from tests.soak.chaos.schedule import Fault, Kind
from tests.soak.chaos.verdict import Evidence


def ran(*complaints: str, trained: tuple[str, ...] = ()) -> Ran:
    jobs = (
        JobSeen("u1", "one", "Running", 1, ((1, ""),)),
        JobSeen("u1", "one", "Succeeded", 2, ((1, "Preempted"), (2, "Succeeded")), restarts=1, finished=True),
        JobSeen("u2", "two", "Failed", 1, ((1, "Diverged"),), finished=True),
    )
    steps = tuple(Step(float(at), (Change(job),)) for at, job in enumerate(jobs))
    digests = {"one": ("abc", "abc")} if trained else {}
    evidence = Evidence(planned=(), steps=steps, trained=trained, digests=digests, counted=1)
    faults = tuple(Fault(1.0, kind, 0.5, 1.0, 0) for kind in (Kind.KILL, Kind.KILL, Kind.PAUSE))
    return Ran(evidence, complaints, faults, (60, 0), gaps=1, seconds=12.4)


def test_the_table_of_two_rounds() -> None:
    text = report.table([ran(), ran("two: has not ended")], seed=7, where="here")
    assert (
        text
        == """\
Seed 7, here: 2 rounds, 25 s.

| fault | times |
|---|---|
| operator killed (SIGKILL) | 4 |
| node paused | 2 |
| a replica's clock a minute off | 2 of 4 that were started |

| outcome | |
|---|---|
| jobs | 4: 2 Failed, 2 Succeeded |
| attempts | 6: 2 Diverged, 2 Preempted, 2 Succeeded |
| restarts, as the operators' metrics count them | 2 |
| attempts with a worker that Kubernetes made twice | 0 |
| times the record had to list again | 2 |
| complaints of the verdict | 1 |
| | two: has not ended |"""
    )


def test_jobs_that_train_are_reported() -> None:
    text = report.table([ran(trained=("one",))], seed=7, where="here")
    assert "| jobs that really trained | 1, restarted 1 times |" in text
    assert "| of these with the weights of an undisturbed run | 1 |" in text


def test_kills_are_dealt_out_to_rounds() -> None:
    assert in_rounds(200) == [20] * 10
    assert in_rounds(45) == [20, 20, 5]
    assert in_rounds(3) == [3]

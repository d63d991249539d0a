"""The verdict finds what was doctored in a record that is otherwise in order: a verdict that cannot fail is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.soak.chaos.jobs import Stub
from tests.soak.chaos.record import Change, ChildSeen, JobSeen, PodSeen, Seen, Step
from tests.soak.chaos.verdict import Evidence, Left, complaints, doubled

ODD, PAIR = Stub("odd", "fails-once", 1.0), Stub("pair", "pair", 1.0)
SWEEP = ("Succeeded", *(f"sweep-{number} Succeeded" for number in (1, 2, 3, 4)))
Story = list[Seen]


def pod(job: str, attempt: int, phase: str, *, index: int = 0, uid: str = "") -> PodSeen:
    name = f"{job}-{attempt}-{index}"
    return PodSeen(uid or name, name, job, attempt, index, phase)


def child(job: str, attempt: int, *, uid: str = "", owner: str = "") -> ChildSeen:
    return ChildSeen(uid or f"{job}-{attempt}", f"{job}-{attempt}", job, attempt, owner or f"uid-{job}")


def job(name: str, *attempts: str, phase: str = "Running", **more: object) -> JobSeen:
    finished = phase in ("Succeeded", "Failed")
    numbered = tuple(enumerate(attempts, start=1))
    found = JobSeen(f"uid-{name}", name, phase, len(attempts), numbered, finished=finished)
    return replace(found, **more)  # type: ignore[arg-type]


ODD_ENDS = job("odd", "ProgramFailed", "Succeeded", phase="Succeeded", failures=1)
STORY: Story = [
    *(job("odd", ""), child("odd", 1), pod("odd", 1, "Pending"), pod("odd", 1, "Running"), pod("odd", 1, "Failed")),
    *(job("odd", "ProgramFailed", failures=1), job("odd", "ProgramFailed", "", failures=1), child("odd", 2)),
    *(job("pair", ""), child("pair", 1), pod("pair", 1, "Running"), pod("pair", 1, "Running", index=1)),
    *(pod("odd", 2, "Running"), pod("odd", 2, "Succeeded"), ODD_ENDS),
    *(pod("pair", 1, "Succeeded"), pod("pair", 1, "Succeeded", index=1)),
    job("pair", "Succeeded", phase="Succeeded"),
]
LEFT = (
    Left("Job", "odd-1", "odd-1", "uid-odd"),
    Left("Pod", "odd-1-0", "odd-1-0", "odd-1"),
    Left("Service", "odd-workers", "s", "uid-odd"),
)


def evidence(story: Story = STORY) -> Evidence:
    steps = tuple(Step(float(at), (Change(seen),)) for at, seen in enumerate(story))
    return Evidence(
        planned=(ODD, PAIR),
        steps=steps,
        left=LEFT,
        counted=1,
        phases={"Succeeded": 2},
        sweep=SWEEP,
    )


def test_a_record_that_is_in_order_has_no_complaint() -> None:
    assert complaints(evidence()) == ()


def swapped(old: Seen, *new: Seen) -> Story:
    at = STORY.index(old)
    return [*STORY[:at], *new, *STORY[at + 1 :]]


PAIR_ENDS = STORY[-1]
DOCTORED: dict[str, tuple[Story, str]] = {
    "a job nobody saw": (
        [each for each in STORY if getattr(each, "job", each.name) != "pair"], "pair: nobody saw it"
    ),
    "a job without an end": (STORY[:-1], "pair: has not ended, Running"),
    "another end": (
        swapped(PAIR_ENDS, job("pair", "InvalidSpec", phase="Failed")), "pair: ended as Failed"
    ),
    "another cause": (
        [each if not isinstance(each, JobSeen) else replace(each, attempts=tuple(
            (number, "Preempted" if outcome == "ProgramFailed" else outcome) for number, outcome in each.attempts
        ), failures=0, restarts=each.failures) for each in STORY],
        "odd: attempt 1 was judged Preempted, not ProgramFailed",
    ),
    "a second child": (
        swapped(child("odd", 2), child("odd", 2), child("odd", 2, uid="again")), "odd: attempt 2 had 2 Indexed Jobs"
    ),
    "no child": (swapped(child("pair", 1)), "pair: attempt 1 had no Indexed Job"),
    "a child too many": (
        [*STORY, child("pair", 2)], "pair: an Indexed Job of attempt 2, and its status knows 1"
    ),
    "a foreign child": (
        swapped(child("pair", 1), child("pair", 1, owner="x")), "pair: the Indexed Job of attempt 1 is not owned"
    ),
    "two gangs": (
        swapped(pod("odd", 1, "Failed"), pod("odd", 2, "Pending"), pod("odd", 1, "Failed")),
        "odd: attempts 1, 2 lived at once",
    ),
    "a counter too high": (
        swapped(ODD_ENDS, replace(ODD_ENDS, failures=2)), "odd: applicationFailures is 2, its attempts make 1"
    ),
    "a counter that falls": (swapped(ODD_ENDS, replace(ODD_ENDS, failures=0)), "odd: a counter of its status fell"),
    "the other counter": (
        swapped(ODD_ENDS, replace(ODD_ENDS, restarts=1)), "odd: infrastructureRestarts is 1, its attempts make 0"
    ),
    "an attempt left out": (
        swapped(ODD_ENDS, replace(ODD_ENDS, attempt=3)), "odd: 3 attempts, and outcomes of [1, 2]"
    ),
    "ended before it began": (
        swapped(ODD_ENDS, replace(ODD_ENDS, start="2026-01-01T00:01:00Z", end="2026-01-01T00:00:59Z")),
        "odd: ended at 2026-01-01T00:00:59Z, before its start",
    ),
    "an end that changes": (
        [*STORY, replace(ODD_ENDS, reason="Other")], "odd: had ended as Succeeded, and its status changed"
    ),
    "an outcome that changes": (
        swapped(ODD_ENDS, replace(ODD_ENDS, attempts=((1, "Preempted"), (2, "Succeeded")), failures=1)),
        "odd: attempt 1 was ProgramFailed, then Preempted",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", DOCTORED)
def test_a_doctored_record_is_found_out(what: str) -> None:
    story, words = DOCTORED[what]
    found = complaints(evidence(story))
    assert any(line.startswith(words) for line in found), found


CHANGED: dict[str, tuple[Callable[[Evidence], Evidence], str]] = {
    "an orphan": (
        lambda good: replace(good, left=(*LEFT, Left("ConfigMap", "lost", "c", ""))),
        "ConfigMap lost: belongs to nothing",
    ),
    "of a job that is gone": (
        lambda good: replace(good, left=(*LEFT, Left("Pod", "old", "p", "uid-old"))), "Pod old: belongs to nothing"
    ),
    "something stays": (
        lambda good: replace(good, remains=LEFT[:1]), "Job odd-1: is still there after all jobs were deleted"
    ),
    "counted too often": (lambda good: replace(good, counted=2), "mptraining_restarts_total: the replicas counted 2"),
    "not counted": (lambda good: replace(good, counted=0), "mptraining_restarts_total: the replicas counted 0"),
    "a job in another phase": (
        lambda good: replace(good, phases={"Succeeded": 1, "Running": 1}), "mptraining_jobs: the leader tells"
    ),
    "a trial too few": (lambda good: replace(good, sweep=SWEEP[:-1]), "the sweep ended as Succeeded, sweep-1"),
    "a job too many": (lambda good: replace(good, planned=(ODD,)), "pair: a job that is not planned"),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGED)
def test_doctored_evidence_is_found_out(what: str) -> None:
    change, words = CHANGED[what]
    found = complaints(change(evidence()))
    assert [line for line in found if line.startswith(words)], found


def test_only_an_attempt_that_a_fault_hit_may_be_called_preempted() -> None:
    preempted: Story = [
        *(job("pair", ""), child("pair", 1), pod("pair", 1, "Running", index=1), pod("pair", 1, "Failed", index=1)),
        *(job("pair", "Preempted", restarts=1), job("pair", "Preempted", "", restarts=1), child("pair", 2)),
        job("pair", "Preempted", "Succeeded", phase="Succeeded", restarts=1),
    ]
    good = replace(evidence(preempted), planned=(PAIR,), left=(), phases={"Succeeded": 1})
    line = "pair: attempt 1 was judged Preempted, not Succeeded"
    assert complaints(good) == (line,)
    assert complaints(replace(good, hit=frozenset({"pair-1-1"}))) == ()
    assert complaints(replace(good, hit=frozenset({"other"}))) == (line,)


def test_a_trial_whose_pod_was_deleted_may_have_lost_its_loss() -> None:
    lost = ("Succeeded", "sweep-1 Failed its job reports no loss, but nothing", *SWEEP[2:])
    trial = replace(evidence([*STORY, pod("sweep-1", 1, "Succeeded", uid="trial")]), sweep=lost)
    assert [line for line in complaints(trial) if line.startswith("the sweep ended")]
    assert complaints(replace(trial, hit=frozenset({"trial"}))) == ()


def test_a_worker_that_kubernetes_made_twice_is_no_second_gang() -> None:
    twin = pod("odd", 2, "Running", uid="twin")
    story = swapped(pod("odd", 2, "Running"), pod("odd", 2, "Running"), twin, replace(twin, phase="Failed"))
    assert complaints(evidence(story)) == ()
    assert doubled(evidence(story)) == {("odd", 2)}
    assert doubled(evidence()) == frozenset()


def test_restarts_that_could_not_be_read_may_be_missing_from_the_metrics() -> None:
    """The end of attempt 1 was seen at 5 s."""
    for blind, counted, good in (
        ((4.0, 6.0), 0, True), ((4.0, 6.0), 1, True), ((4.0, 6.0), 2, False), ((6.0, 9.0), 0, False)
    ):  # fmt: skip
        assert (complaints(replace(evidence(), blind=(blind,), counted=counted)) == ()) == good


def test_the_changes_of_one_list_are_one_moment() -> None:
    """After an outage the order in a list says nothing: the old gang has gone when the new one is there."""
    before = Step(0.0, (Change(pod("odd", 1, "Running")),))
    told = Step(1.0, (Change(pod("odd", 2, "Pending")), Change(pod("odd", 1, "Failed"))))
    good = Evidence(planned=(), steps=(before, told), sweep=SWEEP)
    assert complaints(good) == ()
    gone = Step(1.0, (Change(pod("odd", 2, "Pending")), Change(pod("odd", 1, "Running"), gone=True)))
    assert complaints(replace(good, steps=(before, gone))) == ()
    both = Step(1.0, (Change(pod("odd", 2, "Pending")), Change(pod("odd", 1, "Running"))))
    assert complaints(replace(good, steps=(before, both))) == ("odd: attempts 1, 2 lived at once",)

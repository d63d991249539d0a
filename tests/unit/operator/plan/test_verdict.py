"""A pod's own report of its end, before the verdict on it; the verdicts are in tests/golden/plans."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mptraining_api import events, outcomes
from mptraining_operator.jobs.plan.end import Verdict, find_verdict
from mptraining_operator.jobs.plan.snapshot import SeenBatchJob, SeenPod

BATCH_JOB = SeenBatchJob(name="flowers-1", uid="batch", owner_uid="job", attempt=1, created=0.0, ended="Failed")


def failed(index: int = 0, **fields: Any) -> SeenPod:
    return SeenPod("pod", "uid", "job", "batch", 1, index, "Failed", **fields)


def finished(reason: str, code: int, message: str) -> str:
    """Return the last Event of a worker, as its termination message."""
    event = events.Finished(
        time=1.0, attempt=1, incarnation="pod", worker=0, reason=reason, exit_code=code, message=message
    )
    return event.to_json()


def verdict(*pods: SeenPod) -> Verdict:
    return find_verdict(BATCH_JOB, pods)


def message(last_words: str) -> str:
    return verdict(failed(exit_code=1, termination_message=last_words)).message


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("plain\n\twords: ü, 日本", "plain\n\twords: ü, 日本"),
        ("\x1b[2J\x1b[1;31mall is well\x1b[0m", "all is well"),
        ("title \x1b]0;rm -rf\x07 end", "title ]0;rm -rf end"),
        ("answer\x9b6n back\x08\x08\x7f\r", "answer6n back"),
    ],
)
def test_control_characters_are_removed_from_a_programs_message(said: str, shown: str) -> None:
    assert message(finished("ProgramFailed", 1, said)) == f"worker 0: {shown}"
    # The end of a log of a process that wrote no Event.
    assert shown in message(f"Fatal: {said}.")


def test_of_a_log_the_last_500_characters_are_shown() -> None:
    shown = message("a" * 500 + "b" * 500)
    assert shown == f"worker 0 ended with exit code 1: {'b' * 500}. See kubectl logs pod."


@pytest.mark.parametrize(
    ("pod", "outcome"),
    [
        *(
            (failed(reason=reason, exit_code=137), outcomes.NODE_LOST)
            for reason in (
                *("NodeLost", "NodeShutdown", "Shutdown", "Terminated", "Preempting", "NodeAffinity"),
                *("UnexpectedAdmissionError", "OutOfcpu", "OutOfnvidia.com/gpu"),
            )
        ),
        (failed(disruption="DeletionByPodGC", exit_code=137), outcomes.NODE_LOST),
        (failed(disruption="DeletionByTaintManager", exit_code=137), outcomes.PREEMPTED),
        (failed(disruption="EvictionByEvictionAPI", exit_code=137), outcomes.PREEMPTED),
        # Of a node under pressure.
        (failed(reason="Evicted", disruption="TerminationByKubelet", exit_code=75), outcomes.PREEMPTED),
    ],
)
def test_what_kubernetes_says_about_a_pod_goes_before_its_exit_code(pod: SeenPod, outcome: outcomes.Outcome) -> None:
    assert verdict(pod).outcome == outcome


def test_a_pod_evicted_for_its_own_storage_fails_the_program_in_the_kubelets_words() -> None:
    words = 'Usage of EmptyDir volume "runs" exceeds the limit "2Mi". '
    saved = finished("Preempted", 75, "saved")
    found = verdict(failed(node="node-1", reason="Evicted", message=words, exit_code=75, termination_message=saved))
    assert found.outcome == outcomes.STORAGE_LIMIT
    assert found.message.startswith(f"worker 0 on node node-1 was evicted: {words}")
    assert "sizeLimit" in found.message
    assert "saved" not in found.message


@pytest.mark.parametrize(
    ("reason", "code", "outcome"),
    [
        # The next attempt fills the disk again, from step 0 on an emptyDir.
        ("StorageFull", 1, outcomes.STORAGE_FULL),
        ("Superseded", 76, outcomes.NODE_LOST),
    ],
)
def test_a_worker_says_why_it_ended(reason: str, code: int, outcome: outcomes.Outcome) -> None:
    pod = failed(exit_code=code, termination_message=finished(reason, code, "its reason"))
    assert verdict(pod) == Verdict(outcome, "worker 0: its reason", from_pod=code != 76)


@pytest.mark.parametrize("words", ["Pod team/flowers-1-0 has condition DisruptionTarget …", "other words"])
def test_a_job_that_failed_by_its_failure_policy_was_disrupted_whatever_its_message_says(words: str) -> None:
    """Its pods may be deleted already. The policy has one rule: see test_indexed_job."""
    by_policy = dataclasses.replace(BATCH_JOB, end_reason="PodFailurePolicy", end_message=words)
    assert find_verdict(by_policy, ()).outcome == outcomes.PREEMPTED
    other = dataclasses.replace(BATCH_JOB, end_reason="FailedIndexes", end_message="matching FailJob rule at index 0")
    assert find_verdict(other, ()).outcome == outcomes.CHILD_DELETED


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        (139, "with exit code 139 (SIGSEGV, an error in native code). See kubectl logs pod."),
        (143, "with exit code 143 (SIGTERM). See"),
        (200, "with exit code 200. See"),
        (None, "without an exit code. See"),
    ],
)
def test_an_exit_code_is_explained_and_no_event_is_shown_as_json(code: int | None, shown: str) -> None:
    notice = events.Notice(time=1.0, attempt=1, incarnation="pod", worker=0, level="Info", topic="T", message="text")
    pod = failed(exit_code=code, termination_message=notice.to_json())
    assert verdict(pod).message.startswith(f"worker 0 ended {shown}")


@pytest.mark.parametrize(
    ("disrupted_at", "cause"),
    [
        (100.0, outcomes.PREEMPTED),
        (115.0, outcomes.PREEMPTED),
        (115.1, outcomes.PROGRAM_FAILED),
        (None, outcomes.PREEMPTED),
    ],
)
def test_a_failure_within_15_seconds_before_a_disruption_is_its_effect(
    disrupted_at: float | None, cause: outcomes.Outcome
) -> None:
    evicted = failed(1, disruption="Evicted", disrupted_at=disrupted_at, finished=200.0)
    assert verdict(failed(exit_code=1, finished=100.0), evicted).outcome == cause


def test_the_earliest_failure_decides() -> None:
    first, then = failed(1, exit_code=2, finished=100.0), failed(exit_code=1, finished=101.0)
    assert verdict(then, first).message.startswith("worker 1 ended with exit code 2")

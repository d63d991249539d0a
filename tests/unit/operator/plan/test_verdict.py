"""A pod's own report of its end, before the verdict on it; the verdicts are in tests/golden/plans."""

from __future__ import annotations

import dataclasses

import pytest

from mptraining_api import events, outcomes
from mptraining_operator.plan.end import Verdict, find_verdict
from mptraining_operator.plan.snapshot import SeenBatchJob, SeenPod

BATCH_JOB = SeenBatchJob(name="flowers-1", uid="batch", owner_uid="job", attempt=1, created=0.0, ended="Failed")


def message(last_words: str) -> str:
    pod = SeenPod("pod", "uid", "job", "batch", 1, 0, "Failed", exit_code=1, termination_message=last_words)
    return find_verdict(BATCH_JOB, (pod,)).message


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
    finished = events.Finished(
        time=1.0, attempt=1, incarnation="pod", worker=0, reason="ProgramFailed", exit_code=1, message=said
    )
    assert message(finished.to_json()) == f"worker 0: {shown}"
    # The end of a log of a process that wrote no Event.
    assert shown in message(f"Fatal: {said}.")


@pytest.mark.parametrize(
    "reason",
    [
        "NodeLost",
        "NodeShutdown",
        "Shutdown",
        "Terminated",
        "Preempting",
        "NodeAffinity",
        "UnexpectedAdmissionError",
        "OutOfcpu",
        "OutOfnvidia.com/gpu",
    ],
)
def test_a_pod_that_its_node_ended_is_charged_to_the_node(reason: str) -> None:
    pod = SeenPod("pod", "uid", "job", "batch", 1, 0, "Failed", reason=reason, exit_code=137)
    assert find_verdict(BATCH_JOB, (pod,)).outcome == outcomes.NODE_LOST


def test_a_pod_evicted_for_its_own_storage_fails_the_program_in_the_kubelets_words() -> None:
    last_words = events.Finished(
        time=1.0, attempt=1, incarnation="pod", worker=0, reason="Preempted", exit_code=75, message="saved"
    )
    pod = SeenPod(
        "pod", "uid", "job", "batch", 1, 0, "Failed", node="node-1", reason="Evicted",
        message='Usage of EmptyDir volume "runs" exceeds the limit "2Mi". ', exit_code=75,
        termination_message=last_words.to_json(),
    )  # fmt: skip
    found = find_verdict(BATCH_JOB, (pod,))
    assert found.outcome == outcomes.STORAGE_LIMIT
    assert found.message.startswith(
        'worker 0 on node node-1 was evicted: Usage of EmptyDir volume "runs" exceeds the limit "2Mi". '
    )
    assert "sizeLimit" in found.message
    assert "saved" not in found.message


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("DeletionByPodGC", outcomes.NODE_LOST),
        ("DeletionByTaintManager", outcomes.PREEMPTED),
        ("EvictionByEvictionAPI", outcomes.PREEMPTED),
        ("PreemptionByScheduler", outcomes.PREEMPTED),
    ],
)
def test_a_disrupted_pod_is_charged_to_the_machine_by_the_reason_of_its_condition(
    reason: str, outcome: outcomes.Outcome
) -> None:
    pod = SeenPod("pod", "uid", "job", "batch", 1, 0, "Failed", disruption=reason, exit_code=137)
    assert find_verdict(BATCH_JOB, (pod,)).outcome == outcome


def test_a_full_disk_is_charged_as_a_failure_of_the_program() -> None:
    """The next attempt fills it again, from step 0 on an emptyDir."""
    words = "/runs/flowers: the disk is full. Enlarge the volume that is mounted there, or delete files of it."
    last = events.Finished(
        time=1.0, attempt=1, incarnation="pod", worker=0, reason="StorageFull", exit_code=1, message=words
    )
    pod = SeenPod("pod", "uid", "job", "batch", 1, 0, "Failed", exit_code=1, termination_message=last.to_json())
    found = find_verdict(BATCH_JOB, (pod,))
    assert (found.outcome.reason, found.outcome.budget) == ("StorageFull", outcomes.Budget.BACKOFF_LIMIT)
    assert found.message == f"worker 0: {words}"


@pytest.mark.parametrize("message", ["Pod team/flowers-1-0 has condition DisruptionTarget …", "", "other words"])
def test_a_job_that_failed_by_its_failure_policy_was_disrupted_whatever_its_message_says(message: str) -> None:
    """Its pods may be deleted already. The policy has one rule: see test_indexed_job."""
    failed = dataclasses.replace(BATCH_JOB, end_reason="PodFailurePolicy", end_message=message)
    assert find_verdict(failed, ()).outcome == outcomes.PREEMPTED
    other = dataclasses.replace(BATCH_JOB, end_reason="FailedIndexes", end_message="matching FailJob rule at index 0")
    assert find_verdict(other, ()).outcome == outcomes.CHILD_DELETED


def test_a_pod_evicted_from_a_node_under_pressure_is_disrupted() -> None:
    pod = SeenPod(
        "pod", "uid", "job", "batch", 1, 0, "Failed", reason="Evicted", disruption="TerminationByKubelet", exit_code=75
    )
    assert find_verdict(BATCH_JOB, (pod,)).outcome == outcomes.PREEMPTED


def test_a_superseded_worker_says_who_has_the_folder() -> None:
    last_words = events.Finished(
        time=1.0, attempt=1, incarnation="pod", worker=0, reason="Superseded", exit_code=76,
        message="fence.json: another launch has taken over",
    )  # fmt: skip
    pod = SeenPod("pod", "uid", "job", "batch", 1, 0, "Failed", exit_code=76, termination_message=last_words.to_json())
    found = find_verdict(BATCH_JOB, (pod,))
    assert found == Verdict(outcomes.NODE_LOST, "worker 0: fence.json: another launch has taken over")


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
    started = events.Notice(
        time=1.0, attempt=1, incarnation="pod", worker=0, level="Info", topic="Topic", message="text"
    )
    pod = SeenPod("pod", "uid", "job", "batch", 1, 0, "Failed", exit_code=code, termination_message=started.to_json())
    assert find_verdict(BATCH_JOB, (pod,)).message.startswith(f"worker 0 ended {shown}")


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
    failed = SeenPod("a", "a", "job", "batch", 1, 0, "Failed", exit_code=1, finished=100.0)
    evicted = SeenPod(
        "b", "b", "job", "batch", 1, 1, "Failed", disruption="Evicted", disrupted_at=disrupted_at, finished=200.0
    )
    assert find_verdict(BATCH_JOB, (failed, evicted)).outcome == cause


def test_the_earliest_failure_decides() -> None:
    first = SeenPod("b", "b", "job", "batch", 1, 1, "Failed", exit_code=2, finished=100.0)
    then = SeenPod("a", "a", "job", "batch", 1, 0, "Failed", exit_code=1, finished=101.0)
    assert find_verdict(BATCH_JOB, (then, first)).message.startswith("worker 1 ended with exit code 2")


def test_of_a_log_the_last_500_characters_are_shown() -> None:
    shown = message("a" * 500 + "b" * 500)
    assert shown == f"worker 0 ended with exit code 1: {'b' * 500}. See kubectl logs pod."

"""`mptj logs` without a log: which attempts and workers there are, or what the job waits for."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining.cluster.job_view import view
from mptraining.cluster.logs import WorkerPod, explain_no_logs

WAITS = {"type": "Running", "status": "False", "reason": "Unschedulable", "message": "no machine fits"}
PODS = [
    WorkerPod(
        attempt, index, "2026-01-01T00:00:00Z", f"flowers-{attempt}-{index}", f"{attempt}-{index}", "Running", True
    )
    for attempt in (2, 3)
    for index in (0, 1)
]


def problem(found: list[WorkerPod], *, current: int | None, workers: int | None = None, **asked: Any) -> str:
    conditions = [{**WAITS, "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    status = {"currentAttempt": current, "workers": workers, "conditions": conditions}
    spec = {"output": asked.pop("output")} if "output" in asked else {}
    asked = {"attempt": None, "worker": None} | asked
    return str(explain_no_logs(found, view({"metadata": {"name": "flowers"}, "spec": spec, "status": status}), **asked))


@pytest.mark.parametrize(
    ("found", "current", "attempt", "worker", "text"),
    [
        (PODS, 3, 9, None, "attempt 9 has not been started: Unschedulable: no machine fits. See: mptj status flowers"),
        (PODS, 3, 1, None,
         "the pods of attempt 1 are deleted, and their logs with them; attempts with pods: 2, 3. See"),
        ([], 3, None, None, "the pods of attempt 3 are deleted, and their logs with them. See: mptj status"),
        (PODS, 3, None, 7, "attempt 3 has no worker 7; expected one of 0, 1"),
        (PODS, 3, None, None, "no worker of attempt 3 has started: Unschedulable"),
        (PODS, 3, None, 1, "worker 1 of attempt 3 has not started: Unschedulable"),
    ],
)  # fmt: skip
def test_a_log_that_is_not_there_is_explained(
    found: list[WorkerPod], current: int | None, attempt: int | None, worker: int | None, text: str
) -> None:
    assert problem(found, current=current, attempt=attempt, worker=worker).startswith(f"flowers: {text}")


def test_with_a_run_folder_the_events_of_a_deleted_attempt_are_there() -> None:
    text = problem(PODS, current=3, attempt=1, output={"uri": "gs://runs/flowers"})
    assert text.endswith("The events of its workers are in the files 1-*.jsonl of gs://runs/flowers/events")


def test_of_a_failed_attempt_the_pods_that_still_ran_are_deleted() -> None:
    """The Job controller keeps the pod that failed and deletes its peers."""
    failed = [each for each in PODS if (each.attempt, each.index) == (3, 0)]
    text = problem(failed, current=3, worker=1, workers=2, output={"uri": "gs://runs/flowers/"})
    assert "the pod of worker 1 of attempt 3 is deleted, and its log with it" in text
    assert text.endswith("in the files 3-*.jsonl of gs://runs/flowers/events")
    assert "attempt 3 has no worker 2; expected one of 0" in problem(failed, current=3, worker=2, workers=2)

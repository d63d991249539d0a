"""A job of a cluster as text, from any status that the API server may return."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mptraining.cluster.api import ApiServer
from mptraining.cluster.connection import Cluster
from mptraining.cluster.job_view import (
    advice,
    by_creation,
    lines,
    no_operator_text,
    reason_text,
    row,
    view,
    with_status,
)
from mptraining.runs import history
from mptraining_api import outcomes
from mptraining_api.events import Progress
from mptraining_api.outcomes import Budget

CREATED = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


def document(**status: Any) -> dict[str, Any]:
    metadata = {"name": "flowers", "namespace": "team", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    spec = {"accelerator": {"type": "t4", "countPerWorker": 4}, "output": {"uri": "gs://b/run"}}
    return {"metadata": metadata, "spec": spec, "status": status}


def condition(type: str, reason: str, message: str = "", status: str = "True") -> dict[str, Any]:
    time = "2026-01-01T00:00:00Z"
    return {"type": type, "status": status, "reason": reason, "message": message, "lastTransitionTime": time}


def failed(reason: str) -> dict[str, Any]:
    over = [condition("Running", reason, "the job has ended", "False"), condition("Finished", reason)]
    return document(phase="Failed", conditions=[*over, condition("Failed", reason, "what it was")])


def test_before_the_operator_has_a_status() -> None:
    seen = view(document())
    assert (seen.phase, seen.finished, seen.exit_code) == ("Pending", False, None)
    assert reason_text(seen) == "the operator has not processed the job yet"
    assert no_operator_text(seen, CREATED + 10) is None
    warning = str(no_operator_text(seen, CREATED + 60))
    assert "no operator has processed the job" in warning
    assert "does it serve the namespace 'team'?" in warning
    assert no_operator_text(view(document(phase="Pending")), CREATED + 60) is None


@pytest.mark.parametrize("outcome", [*outcomes.OUTCOMES[1:], *outcomes.OPERATOR_OUTCOMES])
def test_every_end_has_a_code_and_a_next_step(outcome: outcomes.Outcome) -> None:
    seen = view(failed(outcome.reason))
    assert (seen.finished, seen.succeeded) == (True, False)
    assert seen.exit_code == (outcome.exit_code or 1)
    assert reason_text(seen) == f"{outcome.reason}: what it was"
    told = advice(seen)
    # Undecided ends never end a job.
    assert (told is not None) == (outcome.budget is not Budget.UNDECIDED and outcome.reason != "ChildDeleted")
    assert "{" not in (told or "")


def test_commands_in_advice_name_the_job_s_cluster_and_namespace() -> None:
    server = ApiServer(None, name="c", namespace="default", flags=("--context", "c"), default_namespace="default")
    failed = [condition("Finished", "ProgramFailed"), condition("Failed", "ProgramFailed", "x")]
    seen = view(document(phase="Failed", conditions=failed), server.in_namespace("team").flags)
    assert "mptj logs flowers --context c --namespace team;" in str(advice(seen))
    assert server.command("logs -f", "flowers") == "mptj logs -f flowers --context c"
    elsewhere = ApiServer(None, name="c", namespace="team", flags=Cluster(kubeconfig="my config").flags())
    assert elsewhere.command("wait", "flowers") == "mptj wait flowers --kubeconfig 'my config' --namespace team"


def test_a_paused_job_says_so_and_how_to_continue() -> None:
    raw = document()
    raw["metadata"]["annotations"] = {"mptraining.dev/paused": "true"}
    seen = view(raw)
    assert seen.paused
    (told,) = [line for line in lines(seen) if line.strip().startswith("paused")]
    assert f"kubectl annotate mptj flowers -n {seen.namespace} mptraining.dev/paused-" in told
    # That no operator has processed it is no sign of a missing operator.
    assert no_operator_text(seen, CREATED + 60) is None
    assert not any("paused" in line for line in lines(view(document())))


def test_under_way() -> None:
    metrics = [{"name": "loss", "value": "0.51234"}, {"name": "x", "value": "NaN"}]
    progress = {"step": 300, "totalSteps": 1000, "percentComplete": 30, "examplesPerSecond": 512.0,
                "estimatedRemainingSeconds": 90, "metrics": metrics}  # fmt: skip
    running = condition("Running", "Running", "all 2 workers run")
    attempts = [
        {"number": 1, "workers": 4, "outcome": "Preempted", "message": "worker 0"},
        {"number": 2, "workers": 8, "outcome": "Resized"},
        {"number": 3, "workers": 1},
    ]
    resolved = [
        {"decision": "machine", "value": "cpu x 1", "reason": "cpuFallback"},
        {"decision": "strategy", "value": "MultiWorkerMirrored", "reason": "2 hosts"},
        {"decision": "precision", "value": "mixed_float16", "reason": "given in the job"},
    ]
    seen = view(
        document(
            phase="Running", currentAttempt=3, conditions=[running], progress=progress, attempts=attempts,
            resolved=resolved, workers=2, replicasInSync=8,
        )
    )  # fmt: skip
    assert lines(seen, more=["look here"]) == [
        "flowers: Running, attempt 3",
        "  why         Running: all 2 workers run",
        "  progress    step 300/1000 (30%)  loss 0.5123  x NaN  512 examples/s  1 min 30 s left",
        "  on the CPU  t4 is absent, and the operator's setting cpuFallback is on",
        "  runs as     MultiWorkerMirrored, mixed_float16, 2 workers, 8 replicas",
        "  because     machine cpu x 1: cpuFallback",
        "              strategy MultiWorkerMirrored: 2 hosts",
        "              precision mixed_float16: given in the job",
        "  attempts    1 with 4 workers: Preempted: worker 0",
        "              2 with 8 workers: Resized",
        "              3 with 1 worker: under way",
        "  run folder  gs://b/run",
        "  advice      look here",
    ]
    assert row(seen, CREATED + 7200) == (
        "flowers", "Running", "4 x t4", "2", "30%", "loss 0.5123  x NaN", "2 h 0 min",
    )  # fmt: skip


def test_a_job_with_alternatives_shows_the_machine_of_each_attempt() -> None:
    attempts = [
        {"number": 1, "outcome": "NoCapacity"},
        {"number": 2, "machine": 1},
    ]
    resolved = [{"decision": "machine", "value": "cpu x 2", "reason": "spec.accelerator.alternatives[0]"}]
    written = document(phase="Running", currentAttempt=2, attempts=attempts, resolved=resolved)
    written["spec"]["accelerator"] = {
        "type": "a100", "countPerWorker": 8, "alternatives": [{"type": "cpu", "countPerWorker": 2}],
    }  # fmt: skip
    seen = view(written)
    assert [line for line in lines(seen) if "attempts" in line or "cpu" in line] == [
        "  runs as     cpu x 2",
        "  because     machine cpu x 2: spec.accelerator.alternatives[0]",
        "  attempts    1 on a100: NoCapacity",
        "              2 on cpu: under way",
    ]
    assert row(seen, CREATED)[2] == "2 x cpu"


def test_a_status_of_another_version_is_read_as_far_as_it_goes() -> None:
    assert view(document(phase="Running", brandNew={"x": 1})).phase == "Running"
    broken = view(document(phase="Dancing"))
    assert broken.phase == "Pending"
    assert "status cannot be read" in reason_text(broken)


STATUS_PROGRESS = {"attempt": 1, "step": 640, "totalSteps": 640, "epoch": 5, "updateTime": "2026-01-01T00:00:11Z",
    "metrics": [{"name": "loss", "value": "2.434e-21"}]}  # fmt: skip
SUCCEEDED = [condition("Finished", "Succeeded"), condition("Complete", "Succeeded", "640 steps")]


def logged(step: int, loss: float, *, attempt: int = 1) -> Progress:
    return Progress(
        time=CREATED + step, attempt=attempt, incarnation="a", worker=0, step=step, epoch=1, metrics={"loss": loss}
    )


def test_a_status_that_is_later_than_the_log_is_the_end_of_the_curve() -> None:
    # A script of some seconds logs its first step alone.
    seen = view(document(phase="Succeeded", currentAttempt=1, progress=STATUS_PROGRESS, conditions=SUCCEEDED))
    found = history(with_status([[logged(1, 7.885)]], seen))
    assert found.series("loss") == [(1, 7.885), (640, 2.434e-21)]
    assert found.metrics == {"loss": 2.434e-21}
    assert found.finished
    assert (found.finished.reason, found.attempts) == ("Succeeded", 1)


def test_a_log_that_is_later_than_the_status_stays_as_it_is() -> None:
    seen = view(document(phase="Running", currentAttempt=2, progress=STATUS_PROGRESS))
    for attempts in ([[logged(700, 0.5)]], [[logged(640, 0.5)]], [[logged(10, 0.5, attempt=2)]]):
        assert with_status(attempts, seen) == attempts


def test_a_job_whose_pods_are_gone_is_known_by_its_status() -> None:
    over = [condition("Finished", "Diverged"), condition("Failed", "Diverged", "the loss is NaN")]
    seen = view(document(phase="Failed", currentAttempt=3, progress=STATUS_PROGRESS, conditions=over))
    found = history(with_status([], seen))
    assert found.series("loss") == [(640, 2.434e-21)]
    end = found.finished
    assert end
    assert (end.reason, end.message, end.exit_code) == ("Diverged", "the loss is NaN", 3)
    assert with_status([], view(document())) == []


def test_a_view_is_one_line_and_a_picture_for_a_cell() -> None:
    seen = view(document(phase="Running", currentAttempt=1, progress=STATUS_PROGRESS | {"step": 320}))
    assert repr(seen) == "<JobView team/flowers: Running  step 320/640  loss 2.434e-21>"
    html = seen._repr_html_()
    assert '<progress style="width:60%" max="640" value="320"></progress> 50%' in html
    assert html.startswith('<div style="line-height:1.35"><div><b>flowers: Running, attempt 1</b></div>')
    over = view(document(phase="Failed", conditions=[condition("Failed", "X", "<b>no</b>")]))
    assert "<progress" not in over._repr_html_()
    assert "&lt;b&gt;no" in over._repr_html_()


def test_a_job_of_another_controller_asks_for_no_operator() -> None:
    def warning(by: str, after: int) -> str | None:
        managed = document()
        managed["spec"] = {**managed.get("spec", {}), "managedBy": by}
        return no_operator_text(view(managed), CREATED + after)

    assert warning("mptraining.dev/operater", 1) == (
        "spec.managedBy: 'mptraining.dev/operater': a controller of that name has the job, and this operator leaves "
        "it alone. Did you mean 'mptraining.dev/operator'? The field cannot change: delete the job, and create it "
        "with another value or none"
    )
    assert "Did you mean" not in str(warning("example.com/ours", 1))
    assert "no operator has processed the job" in str(warning("mptraining.dev/operator", 60))
    managed = document() | {"spec": {"managedBy": "example.com/ours"}}
    assert reason_text(view(managed)).startswith("a controller of that name has the job")


def test_objects_are_sorted_by_creation_and_by_name() -> None:
    created = {"b": "2026-01-01T00:00:00Z", "a": "2026-01-01T00:00:00Z", "c": "2025-12-31T00:00:00Z"}
    documents = [{"metadata": {"name": name, "creationTimestamp": time}} for name, time in created.items()]
    assert [document["metadata"]["name"] for document in sorted(documents, key=by_creation)] == ["c", "a", "b"]

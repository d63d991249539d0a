"""Pause of a job on a real API server, by its annotation."""

from __future__ import annotations

from typing import Any

from tests.testbed import Exit, Run


def annotate(ns: Any, name: str, value: str | None) -> None:
    ns.patch(name, {"metadata": {"annotations": {"mptraining.dev/paused": value}}})


def test_a_paused_job_is_left_alone_until_the_annotation_is_removed(ns: Any) -> None:
    ns.create("still", lambda pod: Run() if pod.job.endswith("-1") else Exit(0, after=0.2))
    before = ns.running("still")
    annotate(ns, "still", "true")
    ns.wait_for_event("still", "Paused")
    ns.end("still-1", Exit(1))
    ns.wait(lambda: ns.batch_jobs("still")[0]["status"].get("conditions"), lambda found: found)
    # The operator works meanwhile: another job lives from its creation to its end.
    ns.create("other", lambda pod: Exit(0))
    ns.phase("other", "Succeeded")
    assert ns.status("still") == before
    annotate(ns, "still", None)
    status = ns.phase("still", "Succeeded")
    assert [each["outcome"] for each in status["attempts"]] == ["ProgramFailed", "Succeeded"]
    said = [each.partition(":")[0] for each in ns.wait_for_event("still", "Unpaused")]
    assert (said.count("Paused"), said.count("Unpaused")) == (1, 1)

"""What users, platform engineers and newer versions may do wrong: it is said, and the other jobs go on."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.testbed import Exit, Run
from tests.testbed.kubernetes.rest import Refused


def test_what_the_schema_cannot_say_fails_within_five_seconds_without_a_pod(life: Any) -> None:
    """Or, on a machine that is slow now, before a job that was made with it has got its pods to run."""
    began = time.monotonic()
    life.create("right", nodes=1)
    life.create("typo-t5", accelerator={"type": "nvidia-tesla-t5"}, nodes=1)
    status = life.phase("typo-t5", "Failed")
    took = time.monotonic() - began
    life.running("right")
    assert took < max(5, time.monotonic() - began)
    failed = next(each for each in status["conditions"] if each["type"] == "Failed")
    assert failed["reason"] == "InvalidSpec"
    assert "spec.accelerator.type: unknown accelerator 'nvidia-tesla-t5'" in failed["message"]
    assert "Did you mean 'nvidia-tesla-t4'?" in failed["message"]
    assert life.batch_jobs("typo-t5") == []
    assert life.child("configmaps", "typo-t5-job") is None


def test_a_refused_job_may_be_mended(life: Any) -> None:
    life.create("mended", lambda pod: Exit(0), accelerator={"type": "nvidia-tesla-t5"}, nodes=1)
    life.phase("mended", "Failed")
    life.patch("mended", {"spec": {"accelerator": {"type": "cpu"}}})
    status = life.phase("mended", "Succeeded")
    assert "Failed" not in {each["type"] for each in status["conditions"]}


def test_a_pod_that_the_api_server_can_never_take(life: Any) -> None:
    """The schema of a volume is Kubernetes' own and not in the CRD: its words come back."""
    life.create("odd", podTemplate={"volumes": [{"name": "Not A Name", "emptyDir": {}}]})
    life.phase("odd", "Failed")
    failed = life.condition("odd", "Failed")
    assert failed["reason"] == "InvalidSpec"
    assert "Not A Name" in failed["message"]
    assert life.batch_jobs("odd") == []


def test_an_exhausted_quota_is_said_in_the_api_servers_words(alone: Any) -> None:
    """The Indexed Job is accepted, half a gang runs and its status is silent: the words stand in events alone."""
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
    alone.rest.post(f"/api/v1/namespaces/{alone.namespace}/resourcequotas", quota)
    path = f"/api/v1/namespaces/{alone.namespace}/resourcequotas/few"
    alone.wait(lambda: alone.rest.get(path).get("status", {}).get("hard"), lambda hard: hard)
    alone.operator()
    # Long enough for the words to be heard before.
    alone.create("greedy", lambda pod: Run(), runPolicy={"pendingTimeoutSeconds": 12})
    # The one that could be created may be seen after the refusal of the other.
    assert "exceeded quota: few" in alone.waits("greedy", "PodsRefused", "1 of 2 workers could be created")
    alone.phase("greedy", "Failed")
    assert "exceeded quota: few" in alone.condition("greedy", "Failed")["message"]
    alone.released("greedy")


def test_a_refusal_by_admission_is_said_too(life: Any) -> None:
    life.create("nobody", podTemplate={"serviceAccountName": "no-such-account"})
    assert 'serviceaccount "no-such-account" not found' in life.waits("nobody", "PodsRefused")


@pytest.mark.parametrize("attempt", [7, 1])
def test_a_status_edited_by_hand_ends_in_one_gang(life: Any, attempt: int) -> None:
    name = f"edited-{attempt}"
    life.create(name, lambda pod: Run() if pod.job.endswith("-1") else Exit(0, after=0.2))
    life.running(name)
    life.patch(name, {"status": {"currentAttempt": attempt, "attempts": None, "conditions": None}}, "status")
    life.until(name, lambda status: status.get("conditions"))
    if attempt == 1:
        return
    status = life.phase(name, "Succeeded", "Failed")
    assert status["currentAttempt"] >= attempt
    life.released(name)


def test_a_status_that_was_emptied_is_rebuilt(life: Any) -> None:
    life.create("emptied")
    life.running("emptied")

    def emptied() -> bool:
        """Over what the operator may write meanwhile."""
        whole = life.get("emptied")
        try:
            life.rest.put(f"{life.jobs}/emptied/status", {**whole, "status": {}})
        except Refused as refused:
            if refused.code != 409:
                raise
            return False
        return True

    life.wait(emptied, lambda done: done)
    life.running("emptied")
    life.end("emptied-1", Exit(0))
    status = life.phase("emptied", "Succeeded")
    assert status["currentAttempt"] == 1
    assert len(life.batch_jobs("emptied")) == 1


def test_a_status_of_the_wrong_type_is_refused(life: Any) -> None:
    life.create("typed")
    life.running("typed")
    with pytest.raises(Refused, match="currentAttempt"):
        life.patch("typed", {"status": {"currentAttempt": "two"}}, "status")


def test_a_job_of_a_megabyte_and_its_neighbours(life: Any) -> None:
    """A ConfigMap holds one MiB: the job is refused with a reason or trains, and the operator goes on."""
    arguments = {f"key-{number}": "x" * 4000 for number in range(230)}
    program = {"function": {"entryPoint": "model:build", "arguments": arguments}}
    life.create("huge", lambda pod: Exit(0), program=program)
    life.create("small", lambda pod: Exit(0))
    life.phase("small", "Succeeded")
    life.phase("huge", "Succeeded", "Failed")


def test_a_field_of_a_newer_version_is_said_and_the_job_trains(alone: Any) -> None:
    """A newer CRD lets through what this operator does not know."""
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/mptrainingjobs.mptraining.dev"
    schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/colour"
    add = [{"op": "add", "path": schema, "value": {"type": "string"}}]
    alone.rest.patch(crd, add, kind="application/json-patch+json")
    try:

        def made() -> Any:
            # The API server takes a moment to serve a changed schema, in which it may answer 429.
            try:
                alone.create("newer", lambda pod: Exit(0), colour="green")
            except Refused as refused:
                if refused.code != 429:
                    raise
                return False
            if alone.get("newer")["spec"].get("colour"):
                return True
            alone.delete("newer")
            return False

        alone.wait(made, lambda done: done)
        alone.operator()
        alone.phase("newer", "Succeeded")
        alone.wait(lambda: alone.events("newer"), lambda said: any("spec.colour" in each for each in said))
    finally:
        alone.rest.patch(crd, [{"op": "remove", "path": schema}], kind="application/json-patch+json")
        alone.wait(lambda: colour_is_kept(alone), lambda kept: not kept)


def colour_is_kept(life: Any) -> bool:
    """Whether the API server still serves the schema with the field; while it changes over it answers 429."""
    body = life.document("dry", colour="green")
    try:
        return "colour" in life.rest.post(life.jobs, body, {"dryRun": "All"})["spec"]
    except Refused:
        return True

"""Mistakes of users and platform engineers, and fields of newer versions: the operator reports them, and other jobs run
on.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.testbed import Exit, Run
from tests.testbed.kubernetes.rest import Refused


def test_what_the_schema_cannot_express_fails_within_five_seconds_without_a_pod(ns: Any) -> None:
    """On a slow machine: or before a job that was created at the same time has its pods running."""
    began = time.monotonic()
    ns.create("right", workers=1)
    ns.create("typo-t5", accelerator={"type": "t5"}, workers=1)
    status = ns.phase("typo-t5", "Failed")
    took = time.monotonic() - began
    ns.running("right")
    assert took < max(5, time.monotonic() - began)
    failed = next(each for each in status["conditions"] if each["type"] == "Failed")
    assert failed["reason"] == "InvalidSpec"
    assert "spec.accelerator.type: unknown accelerator 't5'" in failed["message"]
    assert "Did you mean 't4'?" in failed["message"]
    assert ns.batch_jobs("typo-t5") == []
    assert ns.child("configmaps", "typo-t5-job") is None


def test_a_refused_job_may_be_corrected(ns: Any) -> None:
    ns.create("corrected", lambda pod: Exit(0), accelerator={"type": "t5"}, workers=1)
    ns.phase("corrected", "Failed")
    ns.patch("corrected", {"spec": {"accelerator": {"type": "cpu"}}})
    status = ns.phase("corrected", "Succeeded")
    assert "Failed" not in {each["type"] for each in status["conditions"]}


@pytest.mark.parametrize(
    ("name", "template", "field"),
    [
        # A volume's schema is Kubernetes' own and not in the CRD: the API server's message is passed on.
        ("odd", {"volumes": [{"name": "Not A Name", "emptyDir": {}}]}, "Not A Name"),
        # A misspelt field is not dropped.
        ("tolerant", {"tolerations": [{"key": "a", "opertor": "Exists"}]}, "template.spec.tolerations[2].opertor"),
        ("spread", {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "Maybe"}]},
         "topologySpreadConstraints[1].whenUnsatisfiable"),
    ],
)  # fmt: skip
def test_a_pod_that_the_api_server_can_never_take_fails_the_job(
    ns: Any, name: str, template: dict[str, Any], field: str
) -> None:
    ns.create(name, podTemplate=template)
    ns.phase(name, "Failed")
    failed = ns.condition(name, "Failed")
    assert failed["reason"] == "InvalidSpec"
    assert field in failed["message"]
    assert ns.batch_jobs(name) == []


def test_an_exhausted_quota_is_reported_with_the_api_servers_message(alone: Any) -> None:
    """The Indexed Job is accepted and half of the gang runs; its status does not show the refusal, only events do."""
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
    alone.rest.post(f"/api/v1/namespaces/{alone.namespace}/resourcequotas", quota)
    path = f"/api/v1/namespaces/{alone.namespace}/resourcequotas/few"
    alone.wait(lambda: alone.rest.get(path).get("status", {}).get("hard"), lambda hard: hard)
    alone.operator()
    alone.create("greedy", lambda pod: Run())
    # The pod that could be created may be seen after the other one's refusal.
    assert "exceeded quota: few" in alone.waits("greedy", "PodsRefused", "1 of 2 workers could be created")


def test_a_status_that_was_emptied_is_rebuilt(ns: Any) -> None:
    ns.create("emptied")
    ns.running("emptied")

    def emptied() -> bool:
        """Retries when the operator has written in between."""
        whole = ns.get("emptied")
        try:
            ns.rest.put(f"{ns.jobs}/emptied/status", {**whole, "status": {}})
        except Refused as refused:
            if refused.code != 409:
                raise
            return False
        return True

    ns.wait(emptied, lambda done: done)
    ns.running("emptied")
    ns.end("emptied-1", Exit(0))
    status = ns.phase("emptied", "Succeeded")
    assert status["currentAttempt"] == 1
    assert len(ns.batch_jobs("emptied")) == 1


def test_a_job_of_a_megabyte_and_its_neighbours(ns: Any) -> None:
    """A ConfigMap holds one MiB: it trains, or is refused with a reason."""
    arguments = {f"key-{number}": "x" * 4000 for number in range(230)}
    program = {"function": {"entryPoint": "model:build", "arguments": arguments}}
    ns.create("huge", lambda pod: Exit(0), program=program)
    ns.create("small", lambda pod: Exit(0))
    ns.phase("small", "Succeeded")
    ns.phase("huge", "Succeeded", "Failed")

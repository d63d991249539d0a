"""Children are created exactly once; refusals of the API server become messages."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_api.kubernetes_api import BATCH_JOBS, CONFIG_MAPS, SERVICES, ApiProblem
from mptraining_operator.jobs.children import rejection
from mptraining_operator.jobs.resources import indexed_job, job_objects
from tests.fakes import Clock
from tests.unit.operator.api_objects import raw_job
from tests.unit.operator.apply.applied_job import QUOTA, Bench


def test_a_second_start_creates_nothing_twice(bench: Bench) -> None:
    bench.start()
    bench.api.calls.clear()
    assert not bench.start()
    both = ("configmaps", "flowers-job"), ("jobs", "flowers-1")
    assert bench.api.calls == [(verb, *child) for child in both for verb in ("create", "get")]
    assert bench.lookups.refusal is None
    assert len([key for key in bench.api.objects if key[0] == "jobs"]) == 1


def test_a_service_of_another_client_with_the_shared_name(bench: Bench) -> None:
    bench.api.put(SERVICES, {"metadata": {"name": "mptraining-workers", "namespace": "team"}, "spec": {}})
    assert bench.start()
    assert bench.refused[:2] == ("NameTaken", "namespace team")
    assert "Service mptraining-workers exists already and is not the operator's" in bench.refused[2]


@pytest.mark.parametrize(
    ("controller", "words"),
    [
        ({"kind": "MPTrainingJob", "name": "flowers", "uid": "earlier", "controller": True}, "being deleted"),
        ({"kind": "Deployment", "name": "web", "uid": "x", "controller": True}, "Deployment 'web'"),
        ({"kind": "MPTrainingJob", "name": "flowers", "uid": "job-1"}, "without a controller"),
    ],
)
def test_a_name_that_is_taken(bench: Bench, controller: dict[str, Any], words: str) -> None:
    body = job_objects.config_map(bench.owner, bench.text)
    body["metadata"]["ownerReferences"] = [controller]
    bench.api.put(CONFIG_MAPS, body)
    assert bench.start()
    assert bench.refused[:2] == ("NameTaken", "ConfigMap flowers-job")
    assert words in bench.refused[2]
    assert bench.api.find(BATCH_JOBS, "team", "flowers-1") is None


def test_our_own_child_that_is_being_deleted_is_waited_for(bench: Bench) -> None:
    body = job_objects.config_map(bench.owner, bench.text)
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    bench.api.put(CONFIG_MAPS, body)
    assert bench.start()
    assert "being deleted" in bench.refused[2]


def test_a_quota_that_refuses_a_child(bench: Bench) -> None:
    bench.api.refuse("create", BATCH_JOBS, QUOTA, times=2)
    assert bench.start()
    assert bench.refused == ("Refused", "Job flowers-1", "exceeded quota: jobs")
    bench.clock.now += 10
    assert bench.start()
    assert bench.lookups.refusal is not None
    assert bench.lookups.refusal.at == bench.clock.now
    assert not bench.start()
    assert bench.lookups.refusal is None


def test_a_quota_that_is_full_of_the_very_child(bench: Bench) -> None:
    bench.start()
    bench.api.refuse("create", BATCH_JOBS, QUOTA)
    assert not bench.start()
    assert bench.lookups.refusal is None


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (ApiProblem(422, "Invalid", "spec.template", causes=("FieldValueInvalid", "FieldValueRequired")), "Invalid"),
        (ApiProblem(400, "BadRequest", "quantities must match"), "Invalid"),
        (ApiProblem(413, "RequestEntityTooLarge", "limit is 3145728"), "Invalid"),
        # Of an admission webhook, which gives no reason, and of a ValidatingAdmissionPolicy, whose cause has none.
        (ApiProblem(400, "Unknown", 'admission webhook "policy" denied the request'), "Refused"),
        (ApiProblem(422, "Invalid", "denied request: failed expression", causes=("",)), "Refused"),
        (ApiProblem(422, "Unknown", "denied"), "Refused"),
    ],
)
def test_another_refusal_of_a_child(bench: Bench, problem: ApiProblem, kind: str) -> None:
    bench.api.refuse("create", BATCH_JOBS, problem)
    assert bench.start()
    assert bench.refused[0] == kind


@pytest.mark.parametrize(
    "problem",
    [
        ApiProblem(403, "Forbidden", "unable to create new content", causes=("NamespaceTerminating",)),
        ApiProblem(404, "NotFound", 'namespaces "team" not found'),
    ],
)
def test_a_namespace_that_is_being_deleted_ends_the_job(bench: Bench, problem: ApiProblem) -> None:
    bench.api.refuse("create", SERVICES, problem)
    assert not bench.start()
    assert bench.lookups.refusal is None
    assert bench.api.calls[-1] == ("create", "services", "mptraining-workers")


def test_a_cluster_without_device_claims_is_named() -> None:
    """Kubernetes 1.33 serves no resource.k8s.io/v1."""
    missing = ApiProblem(404, "NotFound", "the server could not find the requested resource")
    assert "does not serve resource.k8s.io/v1" in str(rejection(missing, "ResourceClaimTemplate flowers-gpus"))


def test_a_pod_that_cannot_be_leaves_nothing_behind(bench: Bench) -> None:
    job = bench.job.model_copy(update={"image": None})
    assert bench.start(job=job)
    assert bench.refused[0] == "Invalid"
    assert "image" in bench.refused[2]
    assert bench.api.calls == []


def test_a_pod_template_of_which_no_pod_can_be_built_is_invalid(api: Any, clock: Clock) -> None:
    bench = Bench(api, clock, raw_job(podTemplate={"env": [{"name": ["X"], "value": "1"}]}))
    assert bench.start()
    assert bench.refused[0] == "Invalid"
    assert bench.refused[2].startswith("spec.podTemplate: no pod can be built of it: TypeError: ")
    assert bench.api.calls == []
    # The pods of a later attempt are those of the first: the error is the operator's, and a retry may succeed.
    with pytest.raises(TypeError):
        bench.start(number=2)


@pytest.mark.parametrize("part", ["launch", "own_volumes"])
def test_a_fault_of_the_operator_is_no_mistake_in_the_pod_template(
    api: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise TypeError("a fault")

    monkeypatch.setattr(indexed_job, part, fails)
    bench = Bench(api, clock, raw_job(podTemplate={"env": [{"name": "X", "value": "1"}]}))
    with pytest.raises(TypeError, match="a fault"):
        bench.start()
    assert bench.lookups.refusal is None


def test_fields_that_kubernetes_does_not_know_are_refused_before_the_job_has_run(bench: Bench) -> None:
    bench.start()
    bench.start(number=2)
    assert bench.api.queries["flowers-1"] == {"fieldValidation": "Strict"}
    # An upgrade of the operator ends no job that runs with such a field.
    assert bench.api.queries["flowers-2"] == {}

"""Services and NetworkPolicies without an owner: created once, repaired when another client changes them, deleted."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_api.kubernetes_api import NETWORK_POLICIES, SERVICES, ApiProblem, Resource
from mptraining_operator.namespace_objects import NamespaceObjects
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.resources import job_objects
from tests.fakes import Clock

KEY = Key("team", "flowers")
SHARED = [("create", "services", "mptraining-workers"), ("create", "networkpolicies", "mptraining-deny-ingress")]


@pytest.fixture
def objects(api: Any, clock: Clock) -> NamespaceObjects:
    return NamespaceObjects(api, clock)


def test_a_namespace_has_them_once(objects: NamespaceObjects, api: Any, clock: Clock) -> None:
    objects.ensure("team")
    objects.ensure("team")
    assert api.calls == SHARED
    # Somebody may delete the namespace and create it again.
    clock.now += 61
    api.objects.clear()
    objects.ensure("team")
    assert api.written() == [*SHARED, *SHARED]


def test_what_another_client_changed_is_repaired(
    objects: NamespaceObjects, api: Any, caplog: pytest.LogCaptureFixture
) -> None:
    objects.ensure("team")
    objects.allow(KEY, "job-1")
    opened = job_objects.deny_policy("team")
    api.put(NETWORK_POLICIES, {**opened, "spec": {**opened["spec"], "ingress": [{}]}})
    widened = job_objects.allow_policy("team", "flowers", "job-1")
    api.put(NETWORK_POLICIES, {**widened, "spec": {**widened["spec"], "ingress": [{}]}})
    del api.objects[("services", "team", "mptraining-workers")]
    assert objects.refresh((None,)) == {}, "the job's rule is not intact"
    objects.ensure("team")
    objects.allow(KEY, "job-1")
    assert objects.refresh((None,)) == {KEY: "job-1"}
    assert "ingress" not in api.find(NETWORK_POLICIES, "team", "mptraining-deny-ingress")["spec"]
    assert api.find(NETWORK_POLICIES, "team", "flowers-workers")["spec"] == widened["spec"]
    assert api.find(SERVICES, "team", "mptraining-workers") is not None
    assert "NetworkPolicy team/flowers-workers was changed by another client and is repaired" in caplog.text


def test_a_rule_that_is_written_while_the_rules_are_listed_is_known(
    objects: NamespaceObjects, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Key("team", "other")
    objects.allow(other, "job-2")
    pages = api.pages

    def list_then_write(resource: Resource, *where: Any, **query: Any) -> Any:
        yield from list(pages(resource, *where, **query))
        if resource == NETWORK_POLICIES:
            objects.allow(KEY, "job-1")
            objects.remove(other)

    monkeypatch.setattr(api, "pages", list_then_write)
    assert objects.refresh((None,)) == {KEY: "job-1"}
    objects.remove(KEY)
    assert api.find(NETWORK_POLICIES, "team", "flowers-workers") is None


def test_a_job_of_the_same_name_gets_a_rule_of_its_own(objects: NamespaceObjects, api: Any) -> None:
    objects.allow(KEY, "job-1")
    objects.allow(KEY, "job-2")
    found = api.find(NETWORK_POLICIES, "team", "flowers-workers")
    assert found["spec"]["podSelector"]["matchLabels"]["mptraining.dev/job-uid"] == "job-2"


def test_a_deletion_is_of_the_rule_that_was_written(objects: NamespaceObjects, api: Any) -> None:
    objects.remove(KEY)
    assert api.calls == [], "a job of one worker has none"
    objects.allow(KEY, "job-1")
    other = NamespaceObjects(api, lambda: 0.0)
    other.allow(KEY, "job-2")
    objects.remove(KEY)
    assert api.find(NETWORK_POLICIES, "team", "flowers-workers") is not None
    other.remove(KEY)
    assert api.find(NETWORK_POLICIES, "team", "flowers-workers") is None


def test_a_creation_that_failed_is_tried_again(objects: NamespaceObjects, api: Any) -> None:
    api.refuse("create", NETWORK_POLICIES, ApiProblem(403, "Forbidden", "exceeded quota"))
    with pytest.raises(ApiProblem, match="quota"):
        objects.ensure("team")
    objects.ensure("team")
    assert api.find(NETWORK_POLICIES, "team", "mptraining-deny-ingress") is not None

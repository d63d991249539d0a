"""Services and NetworkPolicies without an owner: created once, repaired when another client changes them."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_api.kubernetes_api import NETWORK_POLICIES, SERVICES, ApiProblem
from mptraining_operator.jobs.namespace_objects import NamespaceObjects
from mptraining_operator.jobs.resources import job_objects
from tests.fakes import Clock

SHARED = [("create", "services", "mptraining-workers"), ("create", "networkpolicies", "mptraining-workers")]


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
    right = job_objects.network_policy("team")
    api.put(NETWORK_POLICIES, {**right, "spec": {**right["spec"], "ingress": [{}]}})
    del api.objects[("services", "team", "mptraining-workers")]
    objects.ensure("team", again=True)
    assert api.find(NETWORK_POLICIES, "team", "mptraining-workers")["spec"] == right["spec"]
    assert api.find(SERVICES, "team", "mptraining-workers") is not None
    assert "NetworkPolicy team/mptraining-workers was changed by another client and is repaired" in caplog.text


def test_a_creation_that_failed_is_tried_again(objects: NamespaceObjects, api: Any) -> None:
    api.refuse("create", NETWORK_POLICIES, ApiProblem(403, "Forbidden", "exceeded quota"))
    with pytest.raises(ApiProblem, match="quota"):
        objects.ensure("team")
    objects.ensure("team")
    assert api.find(NETWORK_POLICIES, "team", "mptraining-workers") is not None

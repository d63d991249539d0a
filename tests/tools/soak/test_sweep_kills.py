"""The count of created jobs in the audit log of a killed sweep, without servers."""

from __future__ import annotations

from tests.soak.sweep_kills import creations
from tests.testbed.kubernetes.audit import Request


def create(name: str, code: int, resource: str = "mptrainingjobs") -> Request:
    return Request("operator", "operator", "create", resource, "", "sweeps", name, code, began=0.0, ended=0.1)


def test_a_job_that_was_created_twice_is_seen() -> None:
    requests = [create("tpe-1", 201), create("tpe-1", 409), create("tpe-2", 201), create("tpe-2", 201)]
    assert creations([*requests, create("other-1", 201), create("tpe-3", 201, "pods")], "tpe") == {
        "tpe-1": 1,
        "tpe-2": 2,
    }


def test_a_request_whose_client_was_killed_counts_once() -> None:
    requests = [create("tpe-1", 504), create("tpe-2", 504), create("tpe-2", 201), create("tpe-3", 500)]
    assert creations(requests, "tpe") == {"tpe-1": 1, "tpe-2": 1}

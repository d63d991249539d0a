"""How one replica is put together: the fence of the reconciler's writes, and what happens when a term ends."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from mptraining_api.kubernetes_api import JOBS, PODS
from mptraining_operator import cluster
from mptraining_operator.app import Operator
from mptraining_operator.cluster import Cluster
from mptraining_operator.leader_election import NotLeading, Term
from mptraining_operator.metrics import Metrics
from mptraining_operator.settings import Identity, OperatorSettings
from tests.unit.operator.api_objects import raw_job


class Replica:
    def __init__(self) -> None:
        self.stuck: list[str] = []
        identity = Identity(name="a", namespace="ops")
        self.operator = Operator(
            OperatorSettings(),
            identity,
            Cluster(None),
            Cluster(None),
            Metrics(monotonic=float),
            on_stuck=self.stuck.append,
        )
        self.reconciler = self.operator._reconciler


def test_the_reconciler_writes_only_in_a_term(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []

    def send(api: Any, method: str, path: str, **options: Any) -> Any:
        sent.append(method)
        return {}, 200, {}

    monkeypatch.setattr(cluster, "send", send)
    replica = Replica()
    write = lambda: replica.reconciler._applier._cluster.create(PODS, "team", {})  # noqa: E731
    with pytest.raises(NotLeading):
        write()
    term = Term(1, lambda: False)
    assert replica.reconciler.start(0, term)
    write()
    term.ended.set()
    with pytest.raises(NotLeading):
        write()
    assert sent == ["POST"]


@pytest.mark.parametrize("left", [True, False])
def test_the_process_ends_only_if_a_worker_does_not_leave_its_call(monkeypatch: pytest.MonkeyPatch, left: bool) -> None:
    replica = Replica()
    waited: list[float] = []

    def join(seconds: float) -> bool:
        waited.append(seconds)
        return left

    monkeypatch.setattr(replica.reconciler, "join", join)
    replica.operator._stand_by("the lease could not be renewed in time")
    assert waited == [60.0]
    assert replica.stuck == ([] if left else ["a worker is still in a call 60 s after its term ended"])


def test_a_new_leader_repairs_shared_objects_and_reconciles(api: Any) -> None:
    """Jobs that an older version started run in a namespace without them."""
    api.put(JOBS, raw_job(status={"phase": "Running", "currentAttempt": 1}))
    identity, metrics = Identity(name="a", namespace="ops"), Metrics(monotonic=float)
    settings = OperatorSettings.parse({"workers": 1, "progress": {"enabled": False}})
    operator = Operator(settings, identity, api, api, metrics, on_stuck=lambda cause: None)
    term = Term(1, lambda: False)
    operator._lease._term = term
    reconciled = threading.Event()
    operator._reconciler.reconcile = lambda key: reconciled.set()  # type: ignore[method-assign]
    operator._reconcile(term)
    assert reconciled.wait(60)
    assert ("create", "networkpolicies", "mptraining-deny-ingress") in api.calls
    operator._queue.stop()
    assert operator._reconciler.join(60)


def test_a_leader_that_cannot_begin_does_not_keep_its_lease(caplog: pytest.LogCaptureFixture) -> None:
    replica = Replica()
    replica.operator._reconcile = lambda term: 1 / 0  # type: ignore[assignment,method-assign,return-value]
    replica.operator._begin(Term(1, lambda: False))
    assert replica.stuck == ["its term could not begin"]
    assert "ZeroDivisionError" in caplog.text

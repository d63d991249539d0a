"""One replica as it is put together: metrics, terms of leadership, the fence of its writes, an outage."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from mptraining_api.kubernetes_api import JOBS, PODS, ApiProblem
from mptraining_operator import cluster
from mptraining_operator.app import Operator
from mptraining_operator.cluster import Cluster
from mptraining_operator.leader_election import NotLeading, Term
from mptraining_operator.metrics import Metrics
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.settings import Identity, OperatorSettings
from mptraining_operator.watch import parse
from tests.unit.operator.api_objects import raw_job


class Replica(Operator):
    """`stuck` lists the causes for which the process would end."""

    def __init__(self, api: Any = None, monotonic: Callable[[], float] = time.monotonic, **settings: Any) -> None:
        chosen = OperatorSettings.parse({"healthPort": 0, "progress": {"enabled": False}, **settings})
        self.stuck: list[str] = []
        self.metrics, client = Metrics(monotonic=float), api or Cluster(None)
        identity, stuck = Identity(name="operator-0", namespace="ops"), self.stuck.append
        super().__init__(chosen, identity, client, client, self.metrics, on_stuck=stuck, monotonic=monotonic)


def term(number: int = 1) -> Term:
    return Term(number, lambda: False)


def test_the_first_child_of_a_job_is_timed(api: Any) -> None:
    replica = Replica(api, runtimes={"default": {"images": {"cpu": "t:1", "gpu": "t:1"}}})
    replica._reconciler.start(0, term())
    replica._cache.put_job(parse.job(api.put(JOBS, raw_job())))
    replica._reconciler.reconcile(Key("team", "flowers"))
    # The API server in memory gives all objects the same time.
    assert 'mptraining_created_to_child_seconds_bucket{le="1.0"} 1.0' in replica.metrics.text().decode().splitlines()


def test_the_reconciler_writes_only_in_a_term(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []

    def send(api: Any, method: str, path: str, **options: Any) -> Any:
        sent.append(method)
        return {}, 200, {}

    monkeypatch.setattr(cluster, "send", send)
    reconciler, first = Replica()._reconciler, term()
    write = lambda: reconciler._applier._cluster.create(PODS, "team", {})  # noqa: E731
    with pytest.raises(NotLeading):
        write()
    assert reconciler.start(0, first)
    write()
    first.ended.set()
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

    monkeypatch.setattr(replica._reconciler, "join", join)
    replica._stand_by("the lease could not be renewed in time")
    assert waited == [60.0]
    assert replica.stuck == ([] if left else ["a worker is still in a call 60 s after its term ended"])


def test_a_new_leader_repairs_shared_objects_and_reconciles(api: Any) -> None:
    """Jobs that an older version started run in a namespace without them."""
    api.put(JOBS, raw_job(status={"phase": "Running", "currentAttempt": 1}))
    replica, first = Replica(api), term()
    replica._lease._term = first
    reconciled = threading.Event()
    replica._reconciler.reconcile = lambda key: reconciled.set()  # type: ignore[method-assign]
    replica._reconcile(first)
    assert reconciled.wait(60)
    assert ("create", "networkpolicies", "mptraining-workers") in api.calls
    replica._queue.stop()
    assert replica._reconciler.join(60)


def test_a_leader_that_cannot_begin_does_not_keep_its_lease(caplog: pytest.LogCaptureFixture) -> None:
    replica = Replica()
    replica._reconcile = lambda term: 1 / 0  # type: ignore[assignment,method-assign,return-value]
    replica._begin(term())
    assert replica.stuck == ["its term could not begin"]
    assert "ZeroDivisionError" in caplog.text


def test_an_outage_of_the_api_server_of_35_minutes_restarts_nothing(api: Any) -> None:
    ahead = [0.0]
    replica = Replica(api, lambda: time.monotonic() + ahead[0], lease={"renewSeconds": 0.1})
    api.put(JOBS, raw_job())
    replica._health._host = "127.0.0.1"
    stop = threading.Event()
    running = threading.Thread(target=replica.run, args=(stop,), daemon=True)
    running.start()

    def answer(path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{replica.health_port}{path}", timeout=60) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code

    def becomes(state: Callable[[], bool]) -> bool:
        until = time.monotonic() + 60
        while not state() and time.monotonic() < until:
            time.sleep(0.01)
        return state()

    def away(verb: str, plural: str, name: str) -> None:
        raise ApiProblem(0, "NoAnswer", "connection refused")

    assert becomes(lambda: replica._lease.leading)
    for _ in range(2):
        api.before = away
        ahead[0] += 35 * 60
        assert not replica._lease.leading
        # The clock jumps, so that a thread looks stuck until its next turn.
        assert becomes(lambda: (answer("/healthz"), answer("/readyz")) == (200, 200))
        api.before = lambda *call: None
        assert becomes(lambda: replica._lease.leading)
    assert replica.stuck == []
    stop.set()
    running.join(60)
    assert not running.is_alive()

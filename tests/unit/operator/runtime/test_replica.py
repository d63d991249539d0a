"""One replica as it is put together: terms of leadership, the fence of its writes, an outage."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from mptraining_api.kubernetes_api import JOBS, PODS, SWEEPS, ApiProblem
from mptraining_operator.app import Operator
from mptraining_operator.jobs.watch import parse
from mptraining_operator.runtime.leader_election import NotLeading, Term
from mptraining_operator.runtime.metrics import Metrics
from mptraining_operator.runtime.values import Key
from mptraining_operator.settings import Identity, OperatorSettings
from tests.unit.operator.api_objects import raw_job
from tests.unit.operator.sweeps.swept import document

RUNTIMES = {"default": {"images": {"cpu": "trainer:1", "gpu": "trainer:1-gpu", "tpu": "trainer:1-tpu"}}}


class Bench(Operator):
    """`stuck` lists the causes for which the process would end."""

    def __init__(self, api: Any, monotonic: Callable[[], float] = time.monotonic, **settings: Any) -> None:
        chosen = OperatorSettings.parse(
            {"healthPort": 0, "progress": {"enabled": False}, "runtimes": RUNTIMES, **settings}
        )
        self.stuck: list[str] = []
        self.metrics = Metrics(monotonic=float)
        identity, stuck = Identity(name="operator-0", namespace="ops"), self.stuck.append
        super().__init__(chosen, identity, api, api, self.metrics, on_stuck=stuck, monotonic=monotonic)


@pytest.fixture
def bench(api: Any) -> Bench:
    bench = Bench(api)
    bench.replica.assemble()
    return bench


def term(number: int = 1) -> Term:
    return Term(number, lambda: False)


def becomes(state: Callable[[], bool]) -> bool:
    until = time.monotonic() + 60
    while not state() and time.monotonic() < until:
        time.sleep(0.01)
    return state()


def end(bench: Bench, *terms: Term) -> None:
    for each in terms:
        each.ended.set()
    assert bench.replica._join(60)


def test_the_first_child_of_a_job_is_timed(api: Any, bench: Bench) -> None:
    bench.replica._term = term()
    bench.cache.put_job(parse.job(api.put(JOBS, raw_job())))
    bench.jobs.reconcile(Key("team", "flowers"))
    # The API server in memory gives all objects the same time.
    assert 'mptraining_created_to_child_seconds_bucket{le="1.0"} 1.0' in bench.metrics.text().decode().splitlines()


def test_writes_are_sent_only_in_a_term(api: Any, bench: Bench) -> None:
    def write(name: str) -> None:
        bench.replica.leader.create(PODS, "team", {"metadata": {"name": name}})

    with pytest.raises(NotLeading):
        write("before")
    first = term()
    bench.replica.begin_term(first)
    write("during")
    end(bench, first)
    with pytest.raises(NotLeading):
        write("after")
    assert [name for verb, plural, name in api.calls if (verb, plural) == ("create", "pods")] == ["during"]


@pytest.mark.parametrize("left", [True, False])
def test_the_process_ends_only_if_a_worker_does_not_leave_its_call(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, left: bool
) -> None:
    waited: list[float] = []

    def join(seconds: float) -> bool:
        waited.append(seconds)
        return left

    monkeypatch.setattr(bench.replica._controllers[0], "join", join)
    bench.replica._stand_by("the lease could not be renewed in time")
    assert waited == [60.0]
    assert bench.stuck == ([] if left else ["a worker is still in a call 60 s after its term ended"])
    # Such a worker would write in the next term.
    bench.replica.begin_term(second := term(2))
    assert (bench.replica._term is second) is left
    second.ended.set()


def test_a_new_leader_lists_repairs_and_reconciles_jobs_and_sweeps(api: Any, bench: Bench) -> None:
    api.put(JOBS, raw_job(status={"phase": "Running", "currentAttempt": 1}))
    api.put(SWEEPS, document())
    reconciled: set[Key] = set()
    first = term()
    bench.jobs.reconcile = reconciled.add  # type: ignore[method-assign]
    bench.replica.begin_term(first)
    assert becomes(lambda: Key("team", "flowers") in reconciled)
    assert becomes(lambda: api.find(JOBS, "team", "lr-1") is not None)
    assert ("create", "networkpolicies", "mptraining-workers") in api.calls
    lines = bench.metrics.text().decode().splitlines()
    assert 'mptraining_jobs{phase="Running"} 1.0' in lines
    assert any(line.startswith('mptraining_sweeps{phase="') and line.endswith("1.0") for line in lines)
    end(bench, first)


def test_without_the_resource_of_sweeps_jobs_are_reconciled_and_sweeps_once_it_is_installed(
    api: Any, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    missing = ApiProblem(404, "NotFound", "404 page not found")
    api.refuse("list", SWEEPS, missing)
    api.put(JOBS, raw_job())
    api.put(SWEEPS, document())
    first = term()
    bench.replica.begin_term(first)
    informer = bench.replica._informer
    assert informer is not None
    assert informer.answered.is_set(), "the replica is ready"
    assert "crd-sweeps.yaml" in caplog.text
    assert becomes(lambda: ("create", "jobs", "flowers-1") in api.calls)
    assert api.find(JOBS, "team", "lr-1") is None
    next(source for source in informer.sources if source.problem).due = 0.0
    informer.list_due()
    assert becomes(lambda: api.find(JOBS, "team", "lr-1") is not None)
    end(bench, first)


def test_a_leader_that_cannot_begin_does_not_keep_its_lease(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.replica.begin_term = lambda term: 1 / 0  # type: ignore[assignment,method-assign,return-value]
    bench.replica._lead(term())
    assert becomes(lambda: bench.stuck == ["its term could not begin"])
    assert "ZeroDivisionError" in caplog.text


def test_an_outage_of_the_api_server_of_35_minutes_restarts_nothing(api: Any) -> None:
    ahead = [0.0]
    bench = Bench(api, lambda: time.monotonic() + ahead[0], lease={"renewSeconds": 0.1})
    api.put(JOBS, raw_job())
    bench.replica._health._host = "127.0.0.1"
    stop = threading.Event()
    running = threading.Thread(target=bench.run, args=(stop,), daemon=True)
    running.start()

    def answer(path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{bench.replica.health_port}{path}", timeout=60) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code

    def away(verb: str, plural: str, name: str) -> None:
        raise ApiProblem(0, "NoAnswer", "connection refused")

    assert becomes(lambda: bench.replica.leading)
    for _ in range(2):
        api.before = away
        ahead[0] += 35 * 60
        assert not bench.replica.leading
        # The clock jumps, so that a thread looks stuck until its next turn.
        assert becomes(lambda: (answer("/healthz"), answer("/readyz")) == (200, 200))
        api.before = lambda *call: None
        assert becomes(lambda: bench.replica.leading)
    assert bench.stuck == []
    stop.set()
    running.join(60)
    assert not running.is_alive()

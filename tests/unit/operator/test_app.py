"""One replica as it is put together: its metrics, and what it does in an outage."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from mptraining_api.kubernetes_api import JOBS, ApiProblem
from mptraining_operator.app import Operator
from mptraining_operator.leader_election import Term
from mptraining_operator.metrics import Metrics
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.settings import Identity, OperatorSettings
from mptraining_operator.watch import parse
from tests.unit.operator.api_objects import raw_job

RUNNING = {"phase": "Running", "currentAttempt": 1, "progress": {"step": 5}}


class Bench:
    def __init__(self, api: Any, **settings: Any) -> None:
        self.metrics = Metrics(monotonic=float)
        self.lost: list[str] = []
        self.settings = OperatorSettings.parse({"healthPort": 0, "progress": {"enabled": False}, **settings})
        identity = Identity(name="operator-0", namespace="ops")
        self.operator = Operator(self.settings, identity, api, api, self.metrics, on_stuck=self.lost.append)
        self.operator._reconciler.start(0, Term(1, lambda: False))

    def put(self, raw: dict[str, Any]) -> None:
        self.operator._cache.put_job(parse.job(raw))

    def lines(self) -> set[str]:
        return set(self.metrics.text().decode().splitlines())


def test_the_first_child_of_a_job_is_timed(api: Any) -> None:
    bench = Bench(api)
    bench.put(api.put(JOBS, raw_job()))
    bench.operator._reconciler.reconcile(Key("team", "flowers"))
    # The API server in memory gives all objects the same time.
    assert 'mptraining_created_to_child_seconds_bucket{le="1.0"} 1.0' in bench.lines()


def test_an_outage_of_the_api_server_of_35_minutes_restarts_nothing(api: Any) -> None:
    ahead = [0.0]
    stuck: list[str] = []
    settings = OperatorSettings.parse({"healthPort": 0, "progress": {"enabled": False}, "lease": {"renewSeconds": 0.1}})
    operator = Operator(
        settings,
        Identity(name="operator-0", namespace="ops"),
        api,
        api,
        Metrics(monotonic=float),
        on_stuck=stuck.append,
        monotonic=lambda: time.monotonic() + ahead[0],
    )
    api.put(JOBS, raw_job())
    operator._health._host = "127.0.0.1"
    stop = threading.Event()
    running = threading.Thread(target=operator.run, args=(stop,), daemon=True)
    running.start()

    def answer(path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{operator.health_port}{path}", timeout=60) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code

    def becomes(state: Callable[[], bool]) -> bool:
        until = time.monotonic() + 60
        while not state() and time.monotonic() < until:
            time.sleep(0.01)
        return state()

    def leads() -> bool:
        return operator._lease.leading

    def away(verb: str, plural: str, name: str) -> None:
        raise ApiProblem(0, "NoAnswer", "connection refused")

    assert becomes(leads)
    for _ in range(2):
        api.before = away
        ahead[0] += 35 * 60
        assert not operator._lease.leading
        # The clock jumps, so that a thread looks stuck until its next turn.
        assert becomes(lambda: (answer("/healthz"), answer("/readyz")) == (200, 200))
        api.before = lambda *call: None
        assert becomes(leads)
    assert stuck == []
    stop.set()
    running.join(60)
    assert not running.is_alive()

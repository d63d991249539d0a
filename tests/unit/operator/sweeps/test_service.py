"""The parts of sweeps in one replica, put together: lists, terms, the check before the first trial, metrics."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from mptraining_api.kubernetes_api import JOBS, SWEEPS, ApiProblem
from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_operator.event_recorder import EventRecorder
from mptraining_operator.leader_election import Term
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.sweeps.metrics import SweepMetrics
from mptraining_operator.sweeps.service import Sweeps
from mptraining_operator.watch.cache import Cache
from tests.fakes import Clock
from tests.unit.operator.sweeps.swept import JOB, document

KEY = Key("team", "lr")


class Replica:
    def __init__(self, api: Any, clock: Clock) -> None:
        self.registry = CollectorRegistry()
        self.events = EventRecorder(api, host="operator-0", clock=clock)
        self.jobs = Cache(time.monotonic, self._trial_changed)
        self.sweeps = Sweeps(
            api,
            api,
            self.jobs,
            settings=ClusterSettings(),
            nodes_per_namespace=None,
            namespaces=(),
            relist_seconds=600,
            event_recorder=self.events,
            metrics=SweepMetrics(self.registry),
            wake_job=lambda key: None,
            holds=lambda key: False,
            leading=lambda: True,
            clock=clock,
            monotonic=time.monotonic,
        )

    def _trial_changed(self, namespace: str, sweep_uid: str) -> None:
        self.sweeps.trial_changed(namespace, sweep_uid)

    def lines(self) -> set[str]:
        return set(generate_latest(self.registry).decode().splitlines())


@pytest.fixture
def replica(api: Any, clock: Clock) -> Replica:
    return Replica(api, clock)


def test_a_listed_sweep_is_planned_with_the_real_check(api: Any, replica: Replica) -> None:
    api.put(SWEEPS, document())
    replica.sweeps._relister.run_once()
    assert replica.sweeps.cache.get(KEY) is not None
    replica.sweeps.reconciler.reconcile(KEY)
    assert api.find(JOBS, "team", "lr-1") is not None
    replica.sweeps._relister.run_once()
    assert 'mptraining_sweeps{phase="Pending"} 1.0' in replica.lines()
    assert 'mptraining_sweep_trials{state="Pending"} 1.0' in replica.lines()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"parameters": [{"path": "training.sede", "values": [1]}]}, "spec.parameters[0].path"),
        ({"job": {**JOB, "program": {}}}, "program"),
        # A trial gets nothing that a job does not.
        (
            {"job": {**JOB, "podTemplate": {"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}}},
            "podTemplate.volumes",
        ),
        ({"objective": {"metric": "val_loss", "direction": "Minimize"}}, "spec.objective.metric"),
    ],
)
def test_a_wrong_sweep_creates_nothing_and_names_the_field(
    api: Any, replica: Replica, changes: dict[str, Any], field: str
) -> None:
    api.put(SWEEPS, document(**changes))
    replica.sweeps._relister.run_once()
    replica.sweeps.reconciler.reconcile(KEY)
    status = api.find(SWEEPS, "team", "lr")["status"]
    assert status["phase"] == "Failed"
    failed = next(each for each in status["conditions"] if each["type"] == "Failed")
    assert failed["reason"] == "InvalidSpec"
    assert field in failed["message"]
    assert not [each for each in api.written() if each[0] == "create"]


def test_without_the_resource_a_term_begins_when_it_is_installed(
    api: Any, replica: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    api.refuse("list", SWEEPS, ApiProblem(404, "NotFound", "no such resource"))
    with pytest.raises(ApiProblem) as refused:
        replica.sweeps._relister.run_once()
    assert "crd-sweeps.yaml" in replica.sweeps._relister._describe(refused.value)
    term = Term(1, lambda: False)
    leading = threading.Thread(target=replica.sweeps._lead, args=(term,), daemon=True)
    leading.start()
    assert replica.sweeps.reconciler._term is None
    api.put(SWEEPS, document())
    replica.sweeps._relister.run_once()
    leading.join(30)
    until = time.monotonic() + 30
    while api.find(JOBS, "team", "lr-1") is None and time.monotonic() < until:
        time.sleep(0.01)
    term.ended.set()
    replica.sweeps.stop_queue()
    assert replica.sweeps.reconciler.join(30)
    assert api.find(JOBS, "team", "lr-1") is not None

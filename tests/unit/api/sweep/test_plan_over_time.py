"""The trials of a sweep under random orders of events, with the searcher killed between any two writes."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mptraining_api.sweep.early_stopping import rung_epochs
from mptraining_api.sweep.status import SweepStatus, TrialState
from tests.unit.api.sweep.sweeps import FakeCluster, sweep

SEEDS = st.integers(0, 2**32 - 1)


def score(spec: dict[str, Any]) -> float:
    """Return a value of the job alone; more epochs are better."""
    return (spec["training"]["seed"] * 7919 % 101 + spec["training"]["epochs"]) / 1000


def by_number(spec: Any, trials: Any) -> dict[str, Any]:
    return {"training.seed": len(trials) + 1}


def ends(status: SweepStatus, state: TrialState) -> int:
    return sum(trial.state == state for trial in status.trials or ())


PARAMETER = {"path": "training.seed", "int": {"low": 1, "high": 1000}}


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, kills=st.sampled_from([0.0, 0.1, 0.4]), parallel=st.integers(1, 5), asha=st.booleans())
def test_no_trial_is_lost_or_repeated(seed: int, kills: float, parallel: int, asha: bool) -> None:
    searched = sweep(
        parameters=[PARAMETER],
        trials={"max": 12, "parallel": parallel, "maxFailed": 12},
        stop={"earlyStopping": {"rule": "Hyperband"}} if asha else None,
    )
    cluster = FakeCluster(
        searched,
        random.Random(seed),
        score,
        by_number,
        kills=kills,
        failures=0.1,
        lost=0.15,
        refused=0.05,
        deleted=0.05,
    )
    status = cluster.run()
    trials = status.trials or []
    assert [each.number for each in trials] == list(range(1, 13))
    assert [each.parameters for each in trials] == [{"training.seed": number} for number in range(1, 13)]
    assert len(set(cluster.created)) == len(cluster.created)
    # Every job belongs to a trial, and has that trial's parameters, labels and run folder.
    for name, document in cluster.documents.items():
        trial = trials[int(document["metadata"]["labels"]["mptraining.dev/trial"]) - 1]
        assert name.startswith(f"digits-{trial.number}")
        assert document["spec"]["training"]["seed"] == trial.number
        assert document["spec"]["output"]["uri"] == f"gs://bucket/digits/trials/{trial.number}"
    assert (status.succeeded, status.stopped, status.failed) == tuple(
        ends(status, state) for state in (TrialState.SUCCEEDED, TrialState.STOPPED, TrialState.FAILED)
    )
    assert (status.pending, status.running) == (0, 0)
    values = [each.objective for each in trials if each.objective is not None and each.state != TrialState.FAILED]
    assert status.best is None or status.best.objective == max(values)
    for each in trials:
        if each.state in (TrialState.SUCCEEDED, TrialState.STOPPED):
            epochs = each.values[-1].epoch if each.values else 9
            assert each.objective == score({"training": {"seed": each.number, "epochs": epochs}})
            assert [value.epoch for value in each.values or ()] == list(rung_epochs(1, 9, 3))[: len(each.values or ())]

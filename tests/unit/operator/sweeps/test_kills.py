"""A worker of sweeps that is killed at any call to the API server: no trial is lost, none is created twice."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest

from mptraining_api.kubernetes_api import JOBS, PODS, SWEEPS, Resource
from mptraining_operator.jobs.watch import parse
from mptraining_operator.runtime.values import Key
from tests.fakes import Clock
from tests.unit.operator.conftest import FakeCluster
from tests.unit.operator.sweeps.swept import JOB, Bench, document

RATE, BATCH = "training.optimizer.config.learning_rate", "training.batchSize.global"
TRIALS, KILLS = 8, 12


def objective(rate: float, batch: int) -> float:
    """Return the loss of a trial: a bowl with its bottom at a rate of 0.001 and a batch of 128."""
    return (math.log10(rate) + 3) ** 2 + ((batch - 128) / 64) ** 2


class Killed(BaseException):
    """The process has ended; nothing in it may handle that."""


class KillingCluster(FakeCluster):
    """Ends the process before or after calls, half of the times after: the write is stored, its answer is lost."""

    def __init__(self, chance: random.Random, kills: int) -> None:
        super().__init__()
        self.chance = chance
        self.kills = kills
        self.created: Counter[str] = Counter()

    def create(self, resource: Resource, namespace: str | None, body: Any) -> Any:
        self._perhaps()
        made = super().create(resource, namespace, body)
        self.created[made["metadata"]["name"]] += 1
        self._perhaps()
        return made

    def patch(self, *arguments: Any, **options: Any) -> Any:
        self._perhaps()
        made = super().patch(*arguments, **options)
        self._perhaps()
        return made

    def _perhaps(self) -> None:
        if self.kills and self.chance.random() < 0.4:
            self.kills -= 1
            raise Killed


def spec(algorithm: str, parallel: int) -> dict[str, Any]:
    job = {**JOB, "training": {"epochs": 1, "batchSize": {"global": 64}, "optimizer": {"className": "Adam"}}}
    return document(
        algorithm={"name": algorithm, "seed": 3},
        parameters=[
            {"path": RATE, "logUniform": {"low": 1e-5, "high": 1e-1}},
            {"path": BATCH, "int": {"low": 32, "high": 512, "step": 32}},
        ],
        trials={"max": TRIALS, "parallel": parallel},
        job=job,
    )


def relisted(api: KillingCluster, clock: Clock) -> Bench:
    """Return a new process: its caches have what the API server has."""
    bench = Bench(api, clock)
    for (plural, _, _), raw in list(api.objects.items()):
        if plural == JOBS.plural:
            bench.jobs.put_job(parse.job(raw))
    bench.put(api.find(SWEEPS, "team", "lr"))
    bench.queue.add(Key("team", "lr"))
    return bench


def trials_of(algorithm: str, parallel: int, seed: int, kills: int) -> tuple[list[Any], Counter[str], int]:
    """Run the sweep to its end; return its trials, the creations of jobs, and the kills that were left."""
    chance, clock = random.Random(seed), Clock()
    api = KillingCluster(chance, kills)
    api.put(SWEEPS, spec(algorithm, parallel))
    bench = relisted(api, clock)
    for _ in range(1000):
        try:
            bench.run(2.0)
        except Killed:
            bench = relisted(api, clock)
            continue
        if bench.status()["phase"] == "Succeeded":
            break
        live = [
            key[2]
            for key, raw in api.objects.items()
            if key[0] == JOBS.plural and raw.get("status", {}).get("phase") != "Succeeded"
        ]
        name = chance.choice(live)
        training = api.find(JOBS, "team", name)["spec"]["training"]
        loss = objective(training["optimizer"]["config"]["learning_rate"], training["batchSize"]["global"])
        bench.job(name, "Succeeded", metrics={"loss": loss})
        # The fake API server does not select pods by labels: the sweep sees the end of one job before that of another.
        settled = False
        while not settled:
            try:
                bench.run(5.0)
                settled = True
            except Killed:
                bench = relisted(api, clock)
    found = [(each["number"], each["parameters"], each["objective"]) for each in bench.status()["trials"]]
    assert not [key for key in api.objects if key[0] == PODS.plural][1:]
    return found, api.created, api.kills


@pytest.mark.parametrize(("algorithm", "parallel"), [("TPE", 1), ("Random", 4)])
def test_a_killed_sweep_has_the_trials_of_an_undisturbed_one(algorithm: str, parallel: int) -> None:
    undisturbed, _, _ = trials_of(algorithm, parallel, seed=1, kills=0)
    assert [each[0] for each in undisturbed] == list(range(1, TRIALS + 1))
    killed, created, left = trials_of(algorithm, parallel, 2, KILLS)
    assert killed == undisturbed
    assert left == 0, "all kills were made"
    assert created == {f"lr-{number}": 1 for number in range(1, TRIALS + 1)}

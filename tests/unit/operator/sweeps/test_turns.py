"""Sweeps in one namespace whose workers are limited: each gets its share, and jobs outside of sweeps get theirs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from mptraining_api.kubernetes_api import JOBS, SWEEPS
from mptraining_operator.jobs.watch import parse as parse_jobs
from mptraining_operator.runtime.values import Key
from tests.fakes import Clock
from tests.unit.operator.sweeps.swept import JOB, Bench, document

MOST = 4


def sweep(name: str, *, parallel: int = MOST, workers: int = 1) -> dict[str, Any]:
    values = [{"path": "training.seed", "values": list(range(60))}]
    return document(name, parameters=values, trials={"parallel": parallel}, job={**JOB, "workers": workers})


def live(bench: Bench) -> list[str]:
    """Return the names of the trials' jobs that have not ended, oldest first."""
    ended = {key[2] for key, raw in bench.api.objects.items() if raw.get("status", {}).get("phase") == "Succeeded"}
    return [name for name in bench.made() if name not in ended]


def workers_in_use(bench: Bench) -> int:
    return sum(bench.api.find(JOBS, "team", name)["spec"]["workers"] for name in live(bench))


def rounds(bench: Bench, count: int) -> Counter[str]:
    """End the oldest trial again and again; return the workers that each sweep had, summed over the rounds."""
    had: Counter[str] = Counter()
    for _ in range(count):
        assert workers_in_use(bench) <= MOST
        for name in live(bench):
            had[name.split("-")[0]] += bench.api.find(JOBS, "team", name)["spec"]["workers"]
            bench.job(name, "Running")
        bench.run(2.0)
        bench.job(live(bench)[0], "Succeeded", metrics={"loss": 0.5})
        bench.run(3.0)
    return had


@pytest.mark.parametrize("second_parallel", [1, MOST])
def test_a_sweep_that_has_all_workers_leaves_them_to_another_as_its_trials_end(
    api: Any, clock: Clock, second_parallel: int
) -> None:
    bench = Bench(api, clock, sweep("one"), most=MOST)
    bench.run(5.0)
    assert live(bench) == ["one-1", "one-2", "one-3", "one-4"]
    bench.put(api.put(SWEEPS, sweep("two", parallel=second_parallel)))
    bench.run(5.0)
    assert ("two", "NamespaceFull") in bench.said
    rounds(bench, 4)
    had = rounds(bench, 20)
    share = had["two"] / sum(had.values())
    assert share == pytest.approx(second_parallel and min(second_parallel, MOST / 2) / MOST, abs=0.05)


def put_other(bench: Bench, name: str, workers: int, *, waits: bool, paused: bool = False) -> None:
    """Let a job outside of sweeps wait for workers of its namespace, or have them."""
    running = {"type": "Running", "message": "", "lastTransitionTime": ""}
    running |= {"status": "False", "reason": "NamespaceFull"} if waits else {"status": "True", "reason": "Running"}
    status = {"conditions": [running], "workers": workers, "currentAttempt": 0 if waits else 1}
    metadata = {"name": name, "namespace": "team"}
    metadata |= {"annotations": {"mptraining.dev/paused": "true"}} if paused else {}
    raw = {"metadata": metadata, "spec": {**JOB, "workers": workers}, "status": status}
    bench.jobs.put_job(parse_jobs.job(bench.api.put(JOBS, raw)))


def test_workers_of_ended_trials_are_left_to_a_job_that_waits_until_it_has_enough(api: Any, clock: Clock) -> None:
    bench = Bench(api, clock, sweep("one"), most=MOST)
    bench.run(5.0)
    put_other(bench, "other", MOST, waits=True)
    for name in live(bench):
        bench.job(name, "Running")
    for name in live(bench):
        assert bench.woken == []
        bench.job(name, "Succeeded", metrics={"loss": 0.5})
        bench.run(60.0)
        assert len(bench.made()) == MOST
    assert set(bench.woken) == {Key("team", "other")}
    put_other(bench, "other", MOST, waits=False)
    bench.run(60.0)
    assert len(bench.made()) == MOST
    bench.jobs.remove_missing(Key("team", "other"), bench.api.find(JOBS, "team", "other")["metadata"]["uid"])
    bench.run(5.0)
    assert len(bench.made()) == 2 * MOST


@pytest.mark.parametrize("reason", ["it waits for another job", "it is paused"])
def test_a_job_that_the_workers_of_trials_do_not_help_leaves_them_to_sweeps(
    api: Any, clock: Clock, reason: str
) -> None:
    bench = Bench(api, clock, sweep("one", parallel=2), most=MOST)
    bench.run(5.0)
    if reason == "it is paused":
        put_other(bench, "other", MOST, waits=True, paused=True)
    else:
        put_other(bench, "long", 1, waits=False)
        put_other(bench, "other", MOST, waits=True)
    bench.job("one-1", "Succeeded", metrics={"loss": 0.5})
    bench.run(5.0)
    assert (len(bench.made()), bench.woken) == (3, [])

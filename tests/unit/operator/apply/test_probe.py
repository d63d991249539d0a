"""The probe of an elastic job is created once, is no attempt, and may be refused."""

from __future__ import annotations

import pytest

from mptraining_api.kubernetes_api import BATCH_JOBS
from mptraining_operator.plan.actions import StartProbe
from mptraining_operator.plan.snapshot import Limits
from tests.unit.operator.api_objects import seen_batch_job, version_of
from tests.unit.operator.apply.applied_job import KEY, QUOTA, Bench


def probe(bench: Bench) -> StartProbe:
    return StartProbe(bench.job, machine=0, pods=2)


def test_it_is_created_once_and_is_no_attempt(bench: Bench) -> None:
    assert not bench.apply(actions=(probe(bench),))
    assert not bench.apply(actions=(probe(bench),))
    assert [name for plural, _, name in bench.api.objects if plural == "jobs"] == ["flowers-probe"]
    seen = bench.cache.snapshot(KEY, Limits())
    assert seen is not None
    assert seen.batch_jobs == ()
    assert seen.probe is not None
    assert seen.probe.parallelism == 2


def test_each_of_its_pods_counts(bench: Bench) -> None:
    """Of an attempt's Job only the last ready pod is a change."""
    bench.apply(actions=(probe(bench),))
    raw = bench.api.get(BATCH_JOBS, "team", "flowers-probe")
    for ready in (1, 2):
        raw["status"] = {"active": 2, "ready": ready}
        raw["metadata"]["resourceVersion"] = str(bench.api.version)
        assert bench.cache.put_batch_job(KEY, version_of(raw), seen_batch_job(raw))
        seen = bench.cache.snapshot(KEY, Limits())
        assert seen is not None
        assert seen.probe is not None
        assert seen.probe.ready == ready


def test_a_quota_that_refuses_it_does_not_stop_the_job(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.api.refuse("create", BATCH_JOBS, QUOTA)
    assert not bench.apply(actions=(probe(bench),))
    assert bench.lookups.refusal is None
    assert "the job cannot look for more machines" in caplog.text

"""`make bench-operator` still produces every kind of figure, from a handful of jobs; values depend on the machine."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.left_out import leave_out
from tests.testbed import missing
from tests.testbed.binaries import CONTROL_PLANE, PEER

ROOT = Path(__file__).resolve().parents[2]
NAMES = {
    "operator.created_to_child_p50_seconds.6_jobs",
    "operator.created_to_child_p99_seconds.6_jobs",
    "operator.created_to_pods_p50_seconds.6_jobs",
    "operator.created_to_pods_p99_seconds.6_jobs",
    "operator.resident_mib.6_jobs",
    "operator.api_calls_per_job.3_jobs",
    "operator.jobs_without_one_child.6_jobs",
    "operator.seconds_until_all_succeeded.6_jobs",
    "operator.writes_after_restart.4_jobs",
    "operator.seconds_to_settle_after_restart.4_jobs",
    "operator.trial_end_to_next_pod_p50_seconds.4_trials",
    "operator.trial_end_to_next_pod_p99_seconds.4_trials",
    "operator.sweep_api_calls_per_trial_without_events.6_trials",
    "operator.sweep_resident_mib.6_trials",
    "operator.sweep_status_writes_per_second.6_trials",
}


@pytest.mark.cluster
@pytest.mark.soak
def test_every_kind_of_figure_is_produced() -> None:
    if absent := missing((*CONTROL_PLANE, "kwok")):
        leave_out(absent)
    if missing((PEER,)):
        # Two minutes to build, which `make bench-operator` spends and `make test` does not.
        pytest.skip("the peer is not built: `make bench-operator` once")
    done = subprocess.run(
        [sys.executable, "-m", "bench.operator", "--quick"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    figures = [json.loads(line) for line in done.stdout.splitlines()]

    assert {figure["name"] for figure in figures} == NAMES
    for figure in figures:
        assert figure["rounds"] >= 1
        assert figure["unit"]
        assert math.isfinite(figure["ratio"])
        assert figure["goal"][:2] == "<="
        assert isinstance(figure["met"], bool)
        low, high = figure["spread"]
        assert 0 <= low <= figure["value"] <= high
    against = {figure["against"] for figure in figures}
    assert against == {"training-operator, raised limits", "Jobs by hand", "1"}

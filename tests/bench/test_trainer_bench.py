"""`make bench-trainer` still produces every kind of figure, on the smaller model; values depend on the machine."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from mptraining_trainer.host import native_bfloat16

ROOT = Path(__file__).resolve().parents[2]
# By the group that `--only` takes: a test each, so that two cores share them.
NAMES = {
    "mlp": {"trainer.mlp.steps_per_second"},
    "mlp-replicas": {"trainer.mlp.2_replicas.steps_per_second"},
    "keeping": {"trainer.mlp.keeping_seconds_per_step"},
    "first-step": {"trainer.seconds_to_first_step"},
    "wide-mlp": {f"trainer.wide-mlp.{'mixed_bfloat16' if native_bfloat16() else 'float32'}.steps_per_second"},
    "saving": {"trainer.save.stands_still_seconds", "trainer.save.seconds_per_step", "trainer.resume_seconds"},
    "workers": {"trainer.mlp.2_workers.steps_per_second"},
    "determinism": {"trainer.deterministic.seconds_per_step"},
}


@pytest.mark.training
@pytest.mark.parametrize(
    "group", ["mlp", *(pytest.param(name, marks=pytest.mark.soak) for name in NAMES if name != "mlp")]
)
def test_every_kind_of_figure_is_produced(group: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.trainer", "--quick", "--only", group],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    figures = [json.loads(line) for line in done.stdout.splitlines()]

    assert {figure["name"] for figure in figures} == NAMES[group]
    for figure in figures:
        assert figure["rounds"] >= 1
        assert figure["unit"]
        assert math.isfinite(figure["ratio"])
        assert figure["ratio"] > 0
        assert figure["goal"][:2] in (">=", "<=")
        assert isinstance(figure["met"], bool)
        low, high = figure["spread"]
        assert 0 < low <= figure["value"] <= high
    if group == "mlp":
        assert {"fit", "bare tf.function"} <= {figure["against"] for figure in figures}

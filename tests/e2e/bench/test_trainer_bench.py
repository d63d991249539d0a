"""The trainer's benchmark still produces its figures, on the smallest model; values depend on the machine."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_every_kind_of_figure_is_produced() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hack.bench.trainer", "--quick", "--only", "mlp"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    figures = [json.loads(line) for line in done.stdout.splitlines()]

    assert {figure["name"] for figure in figures} == {"trainer.mlp.steps_per_second"}
    for figure in figures:
        assert figure["rounds"] >= 1
        assert figure["unit"]
        assert math.isfinite(figure["ratio"])
        assert figure["ratio"] > 0
        assert figure["goal"][:2] in (">=", "<=")
        assert isinstance(figure["met"], bool)
        low, high = figure["spread"]
        assert 0 < low <= figure["value"] <= high
    assert {"fit", "bare tf.function"} <= {figure["against"] for figure in figures}

"""Machines that come and go, and the job that is tried on them.

test_machines_over_time.py simulates them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[3] / "golden" / "alternatives.yaml"
A100, L4, T4, CPU = "nvidia-tesla-a100", "nvidia-l4", "nvidia-tesla-t4", "cpu"
# Seconds of training that the job needs, of a pod's start and of its end.
WORK, START, END = 3000, 20, 5

ACCELERATOR: dict[str, Any] = {
    "type": A100,
    "countPerNode": 8,
    "provisioning": "Spot",
    "tryForSeconds": 300,
    "alternatives": [
        {"type": L4, "countPerNode": 8, "provisioning": "Spot"},
        {"type": T4, "countPerNode": 4},
        {"type": CPU, "countPerNode": 4},
    ],
}


# By pattern: the machines of each type, as the times at which they come and go.
PATTERNS: dict[str, dict[str, tuple[int, ...]]] = {
    "the first choice is there": {A100: (0,), CPU: (0,)},
    "the first choice comes in its time": {A100: (200,), CPU: (0,)},
    "only the first alternative is there": {L4: (0,)},
    "only the last alternative is there": {CPU: (0,)},
    "no machine ever comes": {},
    "the first choice comes while the last alternative is tried": {A100: (1000,)},
    "an alternative comes after all were tried once": {T4: (2100,)},
    "the first choice is taken away and back at once": {A100: (0, 1000, 1030)},
    "the first choice is taken away for ever": {A100: (0, 1000), CPU: (0,)},
    "the first choice is taken away in moments, again and again": {A100: (0, 60, 61, 400, 401), T4: (0,)},
    "an alternative is taken away and the first choice is still absent": {CPU: (0, 2500, 2530)},
    "every machine comes and goes": {A100: (0, 500), L4: (600, 1500), T4: (1700, 2300), CPU: (0, 100, 2400)},
}

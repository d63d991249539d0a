"""What the operator's metrics say, out of Prometheus' text."""

from __future__ import annotations

import re


def restarts(metrics: str) -> int:
    """Of all causes together."""
    return sum(int(float(each)) for each in re.findall(r"^mptraining_restarts_total\{[^}]*\} (\S+)$", metrics, re.M))


def phases(metrics: str) -> dict[str, int]:
    """Jobs by phase; phases without a job are left out."""
    found = re.findall(r'^mptraining_jobs\{phase="(\w+)"\} (\S+)$', metrics, re.M)
    return {phase: int(float(count)) for phase, count in found if float(count)}

"""The operator's metrics, parsed from Prometheus' text format."""

from __future__ import annotations

import re


def restarts(metrics: str) -> int:
    """Return the restarts of all causes together."""
    return sum(int(float(each)) for each in re.findall(r"^mptraining_restarts_total\{[^}]*\} (\S+)$", metrics, re.M))


def phases(metrics: str) -> dict[str, int]:
    """Return the number of jobs by phase, without phases that have no job."""
    found = re.findall(r'^mptraining_jobs\{phase="(\w+)"\} (\S+)$', metrics, re.M)
    return {phase: int(float(count)) for phase, count in found if float(count)}

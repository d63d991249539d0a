"""The table of list prices that `plan` prints before anything is created. Pure."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from gke.pools import Pool

_FILE = Path(__file__).with_name("prices.toml")
# Hours that a job with its machine's start and end takes at most here, and those that the cluster exists.
JOB_HOURS, CLUSTER_HOURS = 0.5, 2.0
_ALWAYS = ("cluster", "system", "bucket")


@dataclass(frozen=True)
class Price:
    """US dollars an hour by the list."""

    title: str
    hourly: float
    source: str
    seen: str
    date: date


def prices() -> dict[str, Price]:
    """Return the recorded list prices by pool, with cluster, system and bucket."""
    return {name: Price(**block) for name, block in tomllib.loads(_FILE.read_text(encoding="utf-8")).items()}


def estimate(pools: Sequence[Pool]) -> float:
    """Return the dollars of one job on each pool and a cluster for CLUSTER_HOURS."""
    known = prices()
    always = sum(known[name].hourly * CLUSTER_HOURS for name in _ALWAYS)
    return always + sum(known[pool.name].hourly * JOB_HOURS for pool in pools)


def table(pools: Sequence[Pool]) -> str:
    """Return the prices as lines of text."""
    known = prices()
    lines = [f"{'':44} {'$/hour':>8}  hours  source, and where the figure is from"]
    for name in (*_ALWAYS[:2], *(pool.name for pool in pools), _ALWAYS[2]):
        price = known[name]
        hours = CLUSTER_HOURS if name in _ALWAYS else JOB_HOURS
        lines.append(f"{price.title:44} {price.hourly:8.4g}  {hours:5}  {price.source}")
        lines.append(f"{'':62}{price.date}: {price.seen}")
    lines.append(
        f"About {estimate(pools):.2f} US dollars for one job on each and a cluster of {CLUSTER_HOURS:g} hours."
    )
    lines.append(
        "These are list prices of us-central1 and may be old; look at the sources. Accelerators cost only while a job "
        "has its machine; the cluster costs until `python -m gke down`."
    )
    return "\n".join(lines)

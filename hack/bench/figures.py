"""One figure: a median with its spread, compared with another, against a goal; one JSON line each."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Figure:
    """`ratio` is the median of the rounds' own ratios, each between neighbours in time; spreads are minimum and
    maximum over the rounds. `goal` is the bound of the ratio that `met` was computed from.
    """

    name: str
    value: float
    unit: str
    against: str
    against_value: float
    ratio: float
    goal: str
    met: bool
    spread: tuple[float, float]
    ratio_spread: tuple[float, float]
    rounds: int
    # The ratio of CPU seconds, which another process on the machine disturbs less than the clock.
    cpu_ratio: float | None = None


def figure(
    name: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    *,
    unit: str,
    against: str,
    least: float | None = None,
    most: float | None = None,
    cpu: tuple[Sequence[float], Sequence[float]] | None = None,
) -> Figure:
    """Return the figure of `ours` against `theirs`, round by round; its ratio must be at `least` or at
    `most` so much.
    """
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    ratio = statistics.median(ratios)
    assert (least is None) != (most is None)
    met = ratio >= least if least is not None else most is not None and ratio <= most
    return Figure(
        name=name,
        value=_rounded(statistics.median(ours)),
        unit=unit,
        against=against,
        against_value=_rounded(statistics.median(theirs)),
        ratio=round(ratio, 3),
        goal=f">= {least}" if least is not None else f"<= {most}",
        met=met,
        spread=(_rounded(min(ours)), _rounded(max(ours))),
        ratio_spread=(round(min(ratios), 3), round(max(ratios), 3)),
        rounds=len(ratios),
        cpu_ratio=None if cpu is None else round(statistics.median(a / b for a, b in zip(*cpu, strict=True)), 3),
    )


def publish(measured: Figure) -> None:
    """Write the JSON line to standard output."""
    print(json.dumps(asdict(measured)), flush=True)


def progress(text: str) -> None:
    """Write a line for the user to standard error."""
    print(text, file=sys.stderr, flush=True)


def _rounded(value: float) -> float:
    """Round to four significant digits: more is noise."""
    return float(f"{value:.4g}")

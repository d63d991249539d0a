"""A sweep in a notebook's cell: its state, the best objective so far as a curve, and its best trials."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from mptraining.display.curves import Curve, Panel
from mptraining.display.html import card, grid
from mptraining.sweeps.view import SweepView, heads, one_line, row

MOST_ROWS = 15


def html(view: SweepView, *, lines: Sequence[str] = ()) -> str:
    """Return the HTML of a sweep; `lines` are plain text below its title."""
    ranked = [each for each in view.ranked() if each.objective is not None]
    best = frozenset({2}) if ranked else frozenset()
    rows = [(row(view, each), best if at == 0 else frozenset[int]()) for at, each in enumerate(ranked[:MOST_ROWS])]
    more = [f"and {len(ranked) - MOST_ROWS} more trials"] if len(ranked) > MOST_ROWS else []
    table = grid(heads(view), rows) if rows else ""
    return card(one_line(view), lines=[*lines, *more], table=table, panels=panels(view))


def panels(view: SweepView) -> list[Panel]:
    """Return the chart of the objective of each trial in the order of their ends, with the best so far."""
    ended = in_order_of_ends(view)
    if len(ended) < 2:
        return []
    best = list(accumulate(ended, max if view.maximizes else min))
    return [
        Panel(
            f"best {view.metric} so far",
            (
                Curve(f"best {view.metric} so far", tuple((float(at), value) for at, value in enumerate(best, 1)), 0),
                Curve(view.metric, tuple((float(at), value) for at, value in enumerate(ended, 1)), 1),
            ),
            against="trial",
        )
    ]


def in_order_of_ends(view: SweepView) -> list[float]:
    """Return the objectives of the trials in the order in which they ended."""
    ended = [each for each in view.trials if each.objective is not None]
    ended.sort(key=lambda each: (each.completion_time or "", each.number))
    return [each.objective for each in ended if each.objective is not None]

"""How fast a training goes: the time of a step, how much of it was waiting for data, and what is left at that pace."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from mptraining_trainer.data.input_stats import STEADY, WORTH_SAYING, InputMeter, InputSince, advice

# Executions that the time of a step is taken from.
_RECENT = 1000


class Speed:
    """Told of every execution. The first one traces and compiles; what it took says nothing about a step."""

    def __init__(self, meter: InputMeter, now: Callable[[], float]) -> None:
        self._meter = meter
        self._now = now
        self._step_seconds: deque[tuple[float, int]] = deque(maxlen=_RECENT)
        # When and at which step the first execution was over.
        self._warm_since: tuple[float, int] | None = None
        # Since the last Progress; since the first execution.
        self.recent = InputSince()
        self._steady = InputSince()
        self._advised = False

    def add(self, took: float, waited: float | None, steps: int, step: int) -> float | None:
        """An execution of `steps` steps that ended with step `step`: the seconds of one, None for the first execution.

        `took` and `waited` (for data, None where nobody measured it) are in seconds.
        """
        if self._warm_since is None:
            self._warm_since = self._now(), step
            self.recent, self._steady = InputSince.begin(self._meter), InputSince.begin(self._meter)
            return None
        self.recent.add(took, waited)
        self._steady.add(took, waited)
        self._step_seconds.append((took / steps, steps))
        return took / steps

    @property
    def step_seconds(self) -> float | None:
        """Median over the last executions, weighted by their steps."""
        ordered = sorted(self._step_seconds)
        half = sum(steps for _, steps in ordered) / 2
        for seconds, steps in ordered:
            half -= steps
            if half <= 0:
                return seconds
        return None

    @property
    def input_bound_percent(self) -> float | None:
        """The share of the time in which the device waited for data."""
        return self._steady.bound_percent

    def said(self) -> None:
        """A Progress was said: `recent` begins anew."""
        self.recent = InputSince.begin(self._meter)

    def advice(self) -> str | None:
        """What to do about waiting for data, once, when it is worth saying."""
        percent = self._steady.bound_percent
        if self._advised or percent is None or self._steady.seconds <= STEADY or percent < WORTH_SAYING:
            return None
        self._advised = True
        return advice(self._steady, self._meter)

    def remaining_seconds(self, step: int, total_steps: int) -> float | None:
        """At the pace so far, validation and saving included, which a step's own time leaves out."""
        if self._warm_since is None or step <= self._warm_since[1]:
            return None
        began, first = self._warm_since
        return round((self._now() - began) / (step - first) * (total_steps - step), 1)

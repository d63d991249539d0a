"""The calls of `fit` in a script, of this attempt and of those before: what the trainer is told, and where to go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pydantic import Field

from mptraining_api.model import Model


class FitState(Model):
    """What one call of `fit` did: epochs, and what was measured after each of them."""

    epochs: int
    history: dict[str, list[float]] = Field(default_factory=dict)


class Context(Protocol):
    """What the trainer lends a script. Steps and epochs count over all of its fits; an epoch from 1 when it is done."""

    def progress(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        """Told about once a second, with the epoch under way, and at its end, then with validation's metrics."""

    def before_batch(self, step: int) -> None:
        """Told before every batch, after `step` steps."""

    def after_batch(self, step: int) -> None:
        """Told after every batch, of which `step` are done."""

    def save(self, model: Any, fits: Sequence[FitState]) -> None:
        """Saves a checkpoint after an epoch of the last of these fits; every worker calls it."""

    def earlier(self, model: Any) -> Sequence[FitState]:
        """The fits of earlier attempts up to their checkpoint; asked once, before the first fit, which is `model`'s."""

    def restore(self, model: Any, *, whole: bool) -> None:
        """Restores what `earlier` spoke of: model and optimizer when `whole`, else the model alone, if it is in it."""

    def stop_requested(self) -> bool:
        """Whether the machine is being taken away: training stops after the batch at hand."""


class Fits:
    """What happened in the script's fits so far, in this attempt or an earlier one."""

    def __init__(self, strategy: Any, context: Context) -> None:
        self.strategy = strategy
        self.context = context
        self.model: Any = None
        self.steps = 0
        self.done: list[FitState] = []
        self._earlier: Sequence[FitState] | None = None

    @property
    def epochs(self) -> int:
        return sum(fit.epochs for fit in self.done)

    def begin(self, model: Any, planned: int) -> tuple[int, FitState]:
        """Of the next fit: how many of its planned epochs to skip, and what an earlier attempt did in their place.

        Fits are known by their order. All before the last one of an earlier attempt are over, whether or not they did
        all they planned; their models get what the checkpoint has of them. The last one goes on with its own optimizer.
        """
        self.model = model
        if self._earlier is None:
            self._earlier = self.context.earlier(model)
        number, skipped, before = len(self.done), 0, FitState(epochs=0)
        if number < len(self._earlier):
            last = number == len(self._earlier) - 1
            before = self._earlier[number]
            skipped = min(planned, before.epochs) if last else planned
            self.context.restore(model, whole=last)
        self.done.append(before.model_copy(deep=True))
        return skipped, before

    def epoch_ended(self, metrics: Mapping[str, float]) -> None:
        fit = self.done[-1]
        history = {name: [*fit.history.get(name, []), value] for name, value in metrics.items()}
        self.done[-1] = FitState(epochs=fit.epochs + 1, history={**fit.history, **history})

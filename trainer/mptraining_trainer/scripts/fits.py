"""The calls of `fit` in a script, of this attempt and of those before: what the trainer is told, and where to go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol, TypeVar

from mptraining_trainer.checkpoints.state import FitState
from mptraining_trainer.scripts.random_state import random_states_kept

T = TypeVar("T")


class Added(Enum):
    """What the trainer adds to a script; the topic of its failure, and the failure in words."""

    READ = ("NotRestored", "the checkpoint could not be read")
    BUILD = ("NotBuilt", "the model could not be built from the first batch")
    RESTORE = ("NotRestored", "the model could not be restored")
    SAVE = ("NotSaved", "the checkpoint could not be saved")
    PROGRESS = ("NotReported", "progress could not be reported")
    PROFILE = ("NotProfiled", "the profile could not be recorded")
    SCALE = ("LossNotScaled", "the loss could not be scaled")
    POLICY = ("PolicyUnknown", "the policy of the model's layers could not be read")
    EXPORT = ("NotExported", "the model could not be exported")


class Context(Protocol):
    """What the trainer lends a script. Steps and epochs count over all of its fits; an epoch from 1 when it is done."""

    def progress(self, step: int, epoch: int, metrics: Mapping[str, float], *, epoch_ended: bool = False) -> None:
        """Told about once a second, with the epoch under way, and at its end, then with validation's metrics."""

    def before_batch(self, step: int) -> None:
        """Told before every batch, after `step` steps."""

    def after_batch(self, step: int) -> None:
        """Told after every batch, of which `step` are done."""

    def save(self, model: Any, fits: Sequence[FitState]) -> None:
        """Saves a checkpoint after an epoch of the last of these fits; every worker calls it."""

    def earlier(self, model: Any) -> Sequence[FitState]:
        """The fits of earlier attempts up to their checkpoint; asked once, before the first fit, which is `model`'s."""

    def restore(self, model: Any, *, whole: bool) -> bool:
        """Restores what `earlier` spoke of: model and optimizer when `whole`, else the model alone, if it is in it.

        Returns whether it did.
        """

    def fitted(self, model: Any, policy: str, replicas: int) -> None:
        """Told before each fit: the precision policy that the model's layers have, and the replicas it trains on."""

    def failed(self, what: Added, error: Exception) -> None:
        """Told of an error of the trainer's own that the script must not see. Raises what ends the run in spite."""

    def notice(self, topic: str, message: str, *, level: str = "Info") -> None:
        """As Telemetry.notice."""

    def stop_requested(self) -> bool:
        """Whether the machine is being taken away: training stops after the batch at hand."""


class Fits:
    """What happened in the script's fits so far, in this attempt or an earlier one."""

    def __init__(self, strategy: Any, context: Context) -> None:
        self.strategy = strategy
        self.context = context
        self.model: Any = None
        self.steps = 0
        # Of the last fit's model; None before the first one.
        self.policy: str | None = None
        self.done: list[FitState] = []
        self._earlier: Sequence[FitState] | None = None

    @property
    def epochs(self) -> int:
        return sum(fit.epochs for fit in self.done)

    def begin(self, model: Any, planned: int, build: Callable[[], None]) -> tuple[int, FitState]:
        """Of the next fit: how many of its planned epochs to skip, and what an earlier attempt did in their place.

        Fits are known by their order. All before the last one of an earlier attempt are over, whether or not they did
        all they planned; their models get what the checkpoint has of them. The last one goes on with its own optimizer;
        where its model cannot be restored, it begins again. `build` makes the variables of a model that has none yet;
        it is called only where there is something to restore.
        """
        self.model = model
        if self._earlier is None:
            nothing: Sequence[FitState] = ()
            self._earlier = self._guarded(Added.READ, lambda: self.context.earlier(model), nothing)
        number, skipped, before = len(self.done), 0, FitState(epochs=0)
        if number < len(self._earlier):
            last = number == len(self._earlier) - 1
            self._guarded(Added.BUILD, build, None)
            restored = self._guarded(Added.RESTORE, lambda: self.context.restore(model, whole=last), False)
            if restored or not last:
                before = self._earlier[number]
                skipped = min(planned, before.epochs) if last else planned
            else:
                self._earlier = ()
        self.done.append(before.model_copy(deep=True))
        return skipped, before

    def follow(self, what: Added, call: Callable[[], None]) -> None:
        """Does what the trainer adds to a fit; an error of that ends no script that trains without it."""
        self._guarded(what, call, None)

    def _guarded(self, what: Added, call: Callable[[], T], otherwise: T) -> T:
        try:
            with random_states_kept():
                return call()
        except Exception as error:  # noqa: BLE001 - whatever it is, the script has no part in it
            self.context.failed(what, error)
            return otherwise

    def epoch_ended(self, metrics: Mapping[str, float]) -> None:
        fit = self.done[-1]
        history = {name: [*fit.history.get(name, []), value] for name, value in metrics.items()}
        self.done[-1] = FitState(epochs=fit.epochs + 1, history={**fit.history, **history})

"""Keras' callbacks of a function program, called by the loop as `fit` would call them.

As under `fit`: `on_train_begin`, at every epoch `on_epoch_begin` and `on_epoch_end` with its metrics, validation's with
`val_`; `on_train_batch_begin` and `_end` around each execution of K fused steps, with the number of its first and last
batch, as under `fit(steps_per_execution=K)`; `on_test_begin` and `_end` around validation. `self.model` is the model
that is trained and `self.model.optimizer` its optimizer; `stop_training` is looked at when an epoch ends. An epoch that
the last step of the job cuts short does not end.

Every worker calls them, since reading a model may take all workers; they write into folders of their own
(`callback_files`) and agree whether to stop. What they remember goes into each checkpoint (`callback_kinds`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import JsonValue

from mptraining_api.problems import InvalidProgram, Problem
from mptraining_trainer import callback_kinds as kinds
from mptraining_trainer.callback_files import CallbackFiles
from mptraining_trainer.entry_point import raised
from mptraining_trainer.export import float32_copy
from mptraining_trainer.fence import Fence
from mptraining_trainer.keras_generation import Keras
from mptraining_trainer.monitor import known, mode_of

_RATE = "learning_rate"
# Files of batches are published this often, in seconds; those of an epoch when it ends.
_PUBLISH_EVERY = 30.0


class Callbacks:
    """The callbacks of one training. `agree` is the sum of a number over all workers."""

    def __init__(
        self,
        callbacks: Sequence[Any],
        *,
        keras: Keras,
        model: Any,
        optimizer: Any,
        metrics: Sequence[Any],
        files: CallbackFiles,
        rebuild: Mapping[str, Any],
        validated: bool,
        notice: Callable[..., None],
        now: Callable[[], float],
        agree: Callable[[float], float],
    ) -> None:
        """Raises InvalidProgram for what cannot work."""
        self._callbacks = tuple(callbacks)
        self._names = kinds.names(callbacks)
        self._keras = keras
        self._model = model
        self._optimizer = optimizer
        self._directions = {metric.name: getattr(metric, "_direction", None) for metric in metrics}
        self._files = files
        self._rebuild = rebuild
        self._notice = notice
        self._now = now
        self._agree = agree
        self._batchwise = [one for one in self._callbacks if kinds.calls_batches(one)]
        self._job_rate = self._rate()
        self._published_at = now()
        self._check(validated)
        files.redirect(callbacks)

    def begin(
        self,
        *,
        epochs: int,
        steps_per_epoch: int,
        state: Mapping[str, JsonValue],
        weights: Mapping[str, Sequence[np.ndarray]],
        epochs_done: int | None,
        epoch: int | None,
        step: int,
    ) -> None:
        """Before the first step. `state` and `weights` are those of the checkpoint that training goes on from.

        `epochs_done` have ended in it, None in a new training; `epoch` (from 0) is under way in it, None between two.
        """
        # Closures of the program know the model, not the callback: what they look at stands on it.
        self._model.optimizer = self._optimizer
        self._model.stop_training = False
        saves = _Saves(self._model, self._keras, self._rebuild)
        for callback in self._callbacks:
            # Each of them gets what came before a restart, before it opens its files.
            self._files.bring_back(callback, epochs_done)
            self._call("set_params", {"verbose": 0, "epochs": epochs, "steps": steps_per_epoch}, only=[callback])
            self._call("set_model", saves if _name(callback) == "ModelCheckpoint" else self._model, only=[callback])
        self._call("on_train_begin", {})
        for name, callback in zip(self._names, self._callbacks, strict=True):
            kept = state.get(name)
            if isinstance(kept, Mapping):
                kinds.restore(callback, kept)
            attribute = kinds.WEIGHTS.get(_name(callback))
            if attribute and name in weights:
                setattr(callback, attribute, list(weights[name]))
        self._restore_rate(state.get(_RATE))
        if epoch is not None:
            only = [one for one in self._callbacks if _name(one) in kinds.NOTE_THE_EPOCH]
            self._call("on_epoch_begin", epoch, {}, only=only)
            for callback in only:
                # Noting the epoch must not forget the place in it.
                kept = state.get(self._names[self._callbacks.index(callback)])
                kinds.restore(callback, kept if isinstance(kept, Mapping) else {})
        self._count_steps(step)

    def publish_only(self, fence: Fence | None) -> None:
        """Files are published while this attempt has the run folder."""
        if fence is not None:
            self._files.check = fence.check

    @property
    def stopping(self) -> bool:
        """Whether a callback, on any worker, wants training to end; every worker must ask."""
        return self._agree(float(bool(self._model.stop_training))) > 0

    def state(self) -> dict[str, JsonValue]:
        """What goes into a checkpoint, by name."""
        found: dict[str, JsonValue] = {
            name: dict(kinds.remembered(callback)) for name, callback in zip(self._names, self._callbacks, strict=True)
        }
        if self._job_rate is not None and any(_name(one) in kinds.RATE_SETTERS for one in self._callbacks):
            found[_RATE] = {"job": self._job_rate, "now": self._rate()}
        return found

    def weights(self) -> dict[str, list[np.ndarray]]:
        """The arrays that go into a checkpoint: the best weights of each EarlyStopping that restores them."""
        found = {}
        for name, callback in zip(self._names, self._callbacks, strict=True):
            arrays = getattr(callback, kinds.WEIGHTS.get(_name(callback), ""), None)
            if arrays is not None:
                found[name] = [np.array(array) for array in arrays]
        return found

    def epoch_begins(self, epoch: int) -> None:
        self._call("on_epoch_begin", epoch, {})

    def batches_begin(self, first: int, step: int) -> None:
        """Before an execution whose first batch of the epoch has this number; `step` are done."""
        if self._batchwise:
            self._count_steps(step)
            self._files.settle()
            self._call("on_train_batch_begin", first, {}, only=self._batchwise)

    def batches_end(self, last: int, logs: Mapping[str, float]) -> None:
        if not self._batchwise:
            return
        self._call("on_train_batch_end", last, dict(logs), only=self._batchwise)
        if self._now() - self._published_at >= _PUBLISH_EVERY:
            self._publish()

    def validation_begins(self) -> None:
        self._files.settle()
        self._call("on_test_begin", {})

    def validation_ends(self, logs: Mapping[str, float]) -> None:
        self._call("on_test_end", dict(logs))

    def epoch_ends(self, epoch: int, logs: Mapping[str, float]) -> None:
        self._files.settle()
        # One dict for all: ReduceLROnPlateau adds the learning rate, which a CSVLogger behind it writes down.
        self._call("on_epoch_end", epoch, dict(logs))
        self._publish()

    def end(self, logs: Mapping[str, float]) -> None:
        """After the last step; EarlyStopping may restore its best weights now."""
        self._files.settle()
        self._call("on_train_end", dict(logs))
        self._publish()
        self._files.settle()

    def abandon(self) -> None:
        """Others like these go on from an earlier step: what is written from now on is theirs alone."""
        self._files.settle()
        self._files.close()
        for callback in self._callbacks:
            kinds.close(callback)

    def _publish(self) -> None:
        self._published_at = self._now()
        for callback in self._callbacks:
            for writer in getattr(callback, "_writers", {}).values():
                with contextlib.suppress(Exception):
                    # A closed writer has flushed.
                    writer.flush()
        self._files.publish()

    def _call(self, hook: str, *arguments: Any, only: Sequence[Any] | None = None) -> None:
        for callback in self._callbacks if only is None else only:
            try:
                getattr(callback, hook)(*arguments)
            except Problem:
                raise
            except Exception as error:
                where = f"{kinds.WHERE}[{self._callbacks.index(callback)}]"
                raise Problem(where, raised(f"{_name(callback)}.{hook}", error)) from error

    def _check(self, validated: bool) -> None:
        schedule = self._keras.module.optimizers.schedules.LearningRateSchedule
        rate = getattr(self._optimizer, "_learning_rate", None)
        for number, callback in enumerate(self._callbacks):
            where, kind = f"{kinds.WHERE}[{number}]", _name(callback)
            if kind in kinds.NEED_CONSTANT_RATE and isinstance(rate, schedule):
                raise InvalidProgram(
                    where,
                    f"{kind} sets the learning rate, and the optimizer's is a schedule ({type(rate).__name__})",
                    next_step="Leave one of them out; learningRateScaling.warmupSteps makes a schedule too.",
                )
            monitors = kind in ("EarlyStopping", "ReduceLROnPlateau") or getattr(callback, "save_best_only", False)
            if not monitors:
                continue
            names = known(list(self._directions), validated=validated)
            if callback.monitor not in names:
                text = f"{kind} monitors {callback.monitor!r}, which is none of {', '.join(names)}"
                self._notice("Monitor", text, level="Warning")
            elif not self._keras.legacy and callback.mode == "auto":
                # Keras 3 asks the metrics that `compile` was given, and there may be none.
                mode = mode_of(callback.monitor, self._directions)
                if mode is None:
                    raise InvalidProgram(
                        where,
                        f"{kind} monitors {callback.monitor!r}, and nothing says whether higher or lower is better",
                        next_step="Give it mode='max' or mode='min'.",
                    )
                callback.mode = mode
        if self._batchwise:
            kind = ", ".join(dict.fromkeys(_name(one) for one in self._batchwise))
            self._notice(
                "BatchCallbacks",
                f"{kind}: called after each execution of several fused steps, with the number of the last batch; "
                "training.stepsPerExecution: 1 calls it after every batch",
            )

    def _count_steps(self, step: int) -> None:
        for callback in self._callbacks:
            if _name(callback) == "TensorBoard":
                # Keras 3 counts calls, tf_keras asks the model.
                callback._global_train_batch = step
                counter = getattr(self._model, "_train_counter", None)
                if counter is not None and hasattr(counter, "assign"):
                    counter.assign(step)

    def _rate(self) -> float | None:
        """The learning rate as it is now, None when it is a schedule."""
        if callable(getattr(self._optimizer, "_learning_rate", None)):
            return None
        return float(np.asarray(self._keras.variables_of([self._optimizer.learning_rate])[0]))

    def _restore_rate(self, kept: JsonValue) -> None:
        if not isinstance(kept, Mapping) or self._job_rate is None:
            return
        if kept.get("job") != self._job_rate:
            self._notice(
                "LearningRate",
                f"{self._job_rate:g} from now on: the job's rate was {kept.get('job')} when the callbacks made "
                f"{kept.get('now')} of it",
            )
            return
        self._optimizer.learning_rate = kept["now"]


class _Saves:
    """The model as a ModelCheckpoint sees it: `save` writes it under float32, whatever it is trained under.

    A file of a mixed model opens only where that policy makes sense, and other versions of Keras do not read it at
    all; see `export`.
    """

    def __init__(self, model: Any, keras: Keras, rebuild: Mapping[str, Any]) -> None:
        self._model = model
        self._keras = keras
        self._rebuild = rebuild
        self._copy: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def save(self, filepath: str, overwrite: bool = True, **options: Any) -> None:
        Path(filepath).parent.mkdir(parents=True, exist_ok=True)
        weights = self._model.get_weights()
        if self._copy is None:
            self._copy = float32_copy(self._model, self._keras, self._rebuild, weights)[0]
        else:
            self._copy.set_weights(weights)
        self._copy.save(filepath, overwrite=overwrite, **options)


def _name(callback: Any) -> str:
    return type(callback).__name__

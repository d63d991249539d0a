"""Keras' callbacks of a function program, called by the loop as `fit` would call them.

As under `fit`: `on_train_begin`, at every epoch `on_epoch_begin` and `on_epoch_end` with its metrics, validation's with
`val_`; `on_train_batch_begin` and `_end` around each execution of K fused steps, with the number of its first and last
batch, as under `fit(steps_per_execution=K)`; `on_test_begin` and `_end` around validation, `on_test_batch_begin` and
`_end` around the calls that it takes. `self.model` is the model that is trained and `self.model.optimizer` its
optimizer; `stop_training` is looked at when an epoch ends, and after batches that a callback was called for: the epoch
then ends there, with its validation. An epoch that the last step of the job cuts short does not end.

Every worker calls them, as under `fit`, since reading or setting a variable may take all workers; Keras' own write into
folders of their own (`callback_files`), and all agree whether to stop. What they remember goes into each checkpoint: of
Keras' own by an explicit list of attributes (`callback_kinds`), of the user's what they declare (`callback_state`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import JsonValue

from mptraining_api.problems import InvalidProgram, Problem
from mptraining_trainer.export.export import float32_copy
from mptraining_trainer.fence import Fence
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.model import supported_callbacks as kinds
from mptraining_trainer.source.user_code import raised
from mptraining_trainer.training.best_weights import known, mode_of
from mptraining_trainer.training.callback_files import CallbackFiles

_PAIRS = (("get_state", "set_state"), ("state_dict", "load_state_dict"))
# Objects with one of these keys stand for what JSON has no value for.
_ARRAY, _NUMBER = "$array", "$number"
# What safetensors stores: booleans, integers, floating numbers.
_KINDS = "biuf"


def methods(callback: Any) -> tuple[str, str] | None:
    """The names of the methods by which it declares its state; None when it declares none."""
    for pair in _PAIRS:
        if all(callable(getattr(callback, name, None)) for name in pair):
            return pair
    return None


def packed(state: Any) -> tuple[JsonValue, list[np.ndarray]]:
    """The state as a JSON value, and the arrays in it. Raises TypeError that names the place of anything else."""
    arrays: list[np.ndarray] = []
    return _packed(state, "state", arrays), arrays


def unpacked(value: JsonValue, arrays: Sequence[np.ndarray]) -> Any:
    """The inverse of `packed`; tuples come back as lists, tensors as arrays."""
    if isinstance(value, list):
        return [unpacked(each, arrays) for each in value]
    if not isinstance(value, Mapping):
        return value
    if set(value) == {_ARRAY}:
        return arrays[int(str(value[_ARRAY]))]
    if set(value) == {_NUMBER}:
        return float(str(value[_NUMBER]))
    return {name: unpacked(each, arrays) for name, each in value.items()}


def _packed(value: Any, where: str, arrays: list[np.ndarray]) -> JsonValue:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str) or name in (_ARRAY, _NUMBER):
                raise TypeError(f"{where} has the key {name!r}, which is no name")
        return {name: _packed(each, f"{where}[{name!r}]", arrays) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_packed(each, f"{where}[{number}]", arrays) for number, each in enumerate(value)]
    if type(value) in (int, float):
        return value if math.isfinite(value) else {_NUMBER: str(value)}
    array = np.array(value) if hasattr(value, "__array__") else None
    if array is None or array.dtype.kind not in _KINDS:
        raise TypeError(f"{where} is of {type(value).__name__}, neither a JSON value nor an array of numbers")
    arrays.append(array)
    return {_ARRAY: len(arrays) - 1}


_RATE = "learning_rate"
# Behind a callback's name: what it declares.
_DECLARED = ".state"
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
        for callback in callbacks:
            if (instead := kinds.superseded(callback)) is not None:
                notice("CallbackSuperseded", f"{type(callback).__name__} is not called: {instead}")
        self._callbacks = callbacks = tuple(one for one in callbacks if kinds.superseded(one) is None)
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
        self._declared: dict[str, list[np.ndarray]] = {}
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
            self._call("set_model", saves if _kind(callback) == "ModelCheckpoint" else self._model, only=[callback])
        self._call("on_train_begin", {})
        for name, callback in zip(self._names, self._callbacks, strict=True):
            attribute = kinds.WEIGHTS.get(_kind(callback))
            if attribute and name in weights:
                setattr(callback, attribute, list(weights[name]))
        if epoch is not None:
            # Those that note where they are when an epoch begins; the user's own may be such.
            only = [one for one in self._callbacks if kinds.kind(one) is None or _kind(one) in kinds.NOTE_THE_EPOCH]
            self._call("on_epoch_begin", epoch, {}, only=only)
        # Last, so that what was done since overwrites nothing of it.
        for name, callback in zip(self._names, self._callbacks, strict=True):
            kept = state.get(name)
            if isinstance(kept, Mapping):
                kinds.restore(callback, kept)
            self._restore_declared(name, callback, state, weights)
        self._restore_rate(state.get(_RATE))
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
        self._declared = {}
        for name, callback in zip(self._names, self._callbacks, strict=True):
            if (declared := methods(callback)) is not None:
                found[f"{name}{_DECLARED}"], self._declared[f"{name}{_DECLARED}"] = self._packed(callback, declared[0])
        setters = [one for one in self._callbacks if kinds.own(one) or _kind(one) in kinds.RATE_SETTERS]
        if self._job_rate is not None and setters:
            found[_RATE] = {"job": self._job_rate, "now": self._rate()}
        return found

    def weights(self) -> dict[str, list[np.ndarray]]:
        """The arrays that go into a checkpoint, by file: the best weights of each EarlyStopping that restores them, and
        those of the last `state()`.
        """
        found = {name: arrays for name, arrays in self._declared.items() if arrays}
        for name, callback in zip(self._names, self._callbacks, strict=True):
            arrays = getattr(callback, kinds.WEIGHTS.get(_kind(callback), ""), None)
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

    def batches_end(self, last: int, logs: Mapping[str, float]) -> bool:
        """Whether training is to end after this batch, as one of them says."""
        if not self._batchwise:
            return False
        self._call("on_train_batch_end", last, dict(logs), only=self._batchwise)
        if self._now() - self._published_at >= _PUBLISH_EVERY:
            self._publish()
        return self.stopping

    def validation_begins(self) -> None:
        self._files.settle()
        self._call("on_test_begin", {})

    def test_batches_begin(self, first: int) -> None:
        """Before a call of validation, whose first batch has this number."""
        self._call("on_test_batch_begin", first, {})

    def test_batches_end(self, last: int, logs: Mapping[str, float]) -> None:
        self._call("on_test_batch_end", last, dict(logs))

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

    def _packed(self, callback: Any, getter: str) -> tuple[JsonValue, list[np.ndarray]]:
        try:
            return packed(self._call(getter, only=[callback]))
        except TypeError as error:
            where = f"{kinds.WHERE}[{self._callbacks.index(callback)}]"
            raise InvalidProgram(
                where,
                f"{type(callback).__name__}.{getter}(): {error}",
                expected="None, bool, int, float, str, arrays of numbers, lists and dicts of them",
            ) from None

    def _restore_declared(
        self, name: str, callback: Any, state: Mapping[str, JsonValue], weights: Mapping[str, Sequence[np.ndarray]]
    ) -> None:
        key, declared = f"{name}{_DECLARED}", methods(callback)
        if declared is not None:
            if key in state:
                found = unpacked(state[key], weights.get(key, ()))
                self._call(declared[1], found, only=[callback])
        elif kinds.own(callback) and kinds.keeps_something(callback):
            text = f"{type(callback).__name__} declares no state (get_state() and set_state(state))"
            self._notice("CallbackState", f"{text}: what it keeps begins again after a restart", level="Warning")

    def _publish(self) -> None:
        self._published_at = self._now()
        for callback in self._callbacks:
            for writer in getattr(callback, "_writers", {}).values():
                with contextlib.suppress(Exception):
                    # A closed writer has flushed.
                    writer.flush()
        self._files.publish()

    def _call(self, hook: str, *arguments: Any, only: Sequence[Any] | None = None) -> Any:
        """Returns what the last of them returned."""
        returned = None
        for callback in self._callbacks if only is None else only:
            try:
                returned = getattr(callback, hook)(*arguments)
            except Problem:
                raise
            except Exception as error:
                where = f"{kinds.WHERE}[{self._callbacks.index(callback)}]"
                raise Problem(where, raised(f"{type(callback).__name__}.{hook}", error)) from error
        return returned

    def _check(self, validated: bool) -> None:
        schedule = self._keras.module.optimizers.schedules.LearningRateSchedule
        rate = getattr(self._optimizer, "_learning_rate", None)
        for number, callback in enumerate(self._callbacks):
            where, kind = f"{kinds.WHERE}[{number}]", _kind(callback)
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
            kind = ", ".join(dict.fromkeys(type(one).__name__ for one in self._batchwise))
            self._notice(
                "BatchCallbacks",
                f"{kind}: called after each execution of several fused steps, with the number of the last batch; "
                "training.stepsPerExecution: 1 calls it after every batch",
            )

    def _count_steps(self, step: int) -> None:
        for callback in self._callbacks:
            if _kind(callback) == "TensorBoard":
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


def _kind(callback: Any) -> str:
    return kinds.kind(callback) or ""

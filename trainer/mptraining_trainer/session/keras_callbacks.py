"""Keras callbacks of a function program, called by the fit loop as `fit` would call them.

As under `fit`: `on_train_begin`; in every epoch `on_epoch_begin` and `on_epoch_end` with its metrics, validation's with
`val_`; `on_train_batch_begin` and `_end` around each step, or with stepsPerExecution: K around K fused steps, with the
number of the first and last batch, as under `fit(steps_per_execution=K)`; `on_test_begin` and `_end` around validation,
`on_test_batch_begin` and `_end` around its batches. `self.model` is the trained model and `self.model.optimizer` its
optimizer. `stop_training` is read at the end of an epoch, and after batches for which a callback was called: the epoch
then ends there, with validation. An epoch that the job's last step truncates does not end.

Every worker calls the callbacks, as under `fit`, because reading or setting a variable may be a collective operation.
Keras' own callbacks write into a separate folder per worker (`callback_files`), and all workers agree whether to stop.
Each checkpoint has the callbacks' state: of Keras' own by an explicit list of attributes (`model.supported_callbacks`),
of the user's what they declare (`state_methods`, `pack_state`).
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
from mptraining_trainer import keras_internals
from mptraining_trainer.devices.coordination import sum_over_workers
from mptraining_trainer.fence import Fence
from mptraining_trainer.model import supported_callbacks
from mptraining_trainer.report.error_text import describe_error
from mptraining_trainer.session.best_weights import log_names, mode_of
from mptraining_trainer.session.build import BuildResult
from mptraining_trainer.session.callback_files import CallbackFiles
from mptraining_trainer.worker import Worker

_PAIRS = (("get_state", "set_state"), ("state_dict", "load_state_dict"))
# Objects with one of these keys encode values that JSON does not have.
_ARRAY, _NUMBER = "$array", "$number"
# NumPy kinds that safetensors stores: booleans, integers, floating-point numbers.
_KINDS = "biuf"


def state_methods(callback: Any) -> tuple[str, str] | None:
    """Return the names of the callback's methods that get and set its state; None if it has none."""
    for pair in _PAIRS:
        if all(callable(getattr(callback, name, None)) for name in pair):
            return pair
    return None


def pack_state(state: Any) -> tuple[JsonValue, list[np.ndarray]]:
    """Return the state as a JSON value, and its arrays. Raise TypeError with the path of any other value."""
    arrays: list[np.ndarray] = []
    return _pack_value(state, "state", arrays), arrays


def unpack_state(value: JsonValue, arrays: Sequence[np.ndarray]) -> Any:
    """Return the inverse of `pack_state`; tuples become lists, tensors become arrays."""
    if isinstance(value, list):
        return [unpack_state(item, arrays) for item in value]
    if not isinstance(value, Mapping):
        return value
    if set(value) == {_ARRAY}:
        return arrays[int(str(value[_ARRAY]))]
    if set(value) == {_NUMBER}:
        return float(str(value[_NUMBER]))
    return {name: unpack_state(item, arrays) for name, item in value.items()}


def _pack_value(value: Any, where: str, arrays: list[np.ndarray]) -> JsonValue:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str) or name in (_ARRAY, _NUMBER):
                raise TypeError(f"{where} has the key {name!r}, which is no name")
        return {name: _pack_value(item, f"{where}[{name!r}]", arrays) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_pack_value(item, f"{where}[{number}]", arrays) for number, item in enumerate(value)]
    if type(value) in (int, float):
        return value if math.isfinite(value) else {_NUMBER: str(value)}
    array = np.array(value) if hasattr(value, "__array__") else None
    if array is None or array.dtype.kind not in _KINDS:
        raise TypeError(f"{where} is of {type(value).__name__}, neither a JSON value nor an array of numbers")
    arrays.append(array)
    return {_ARRAY: len(arrays) - 1}


_RATE = "learning_rate"
# Suffix of a callback's name, for the state that it declares.
_DECLARED = ".state"
# Seconds between publications of files that are written after batches; those of an epoch are published at its end.
_PUBLISH_EVERY = 30.0


class Callbacks:
    """The callbacks of one training, if they `exist`; without any, all methods do nothing.

    `save` writes the model to a .keras file. `directions` is for each metric the one that is better; see `mode_of`.
    """

    def __init__(
        self,
        worker: Worker,
        built: BuildResult,
        files: CallbackFiles,
        save: Callable[..., None],
        directions: Mapping[str, str | None],
    ) -> None:
        """Raise InvalidProgram for callbacks that cannot work in this training."""
        notice, callbacks = worker.telemetry.notice, built.program.callbacks
        steps_per_execution = built.context.training.steps_per_execution
        for callback in callbacks:
            if (instead := supported_callbacks.superseded_reason(callback)) is not None:
                notice("CallbackSuperseded", f"{type(callback).__name__} is not called: {instead}")
        callbacks = tuple(callback for callback in callbacks if supported_callbacks.superseded_reason(callback) is None)
        # Decided by the callbacks of all workers, since `any_worker_stopped` is a collective operation.
        self.exist = bool(callbacks)
        self._stops_after_batches = any(map(supported_callbacks.has_batch_hooks, callbacks))
        # An observer only reports, and may miss batches.
        others = [callback for callback in callbacks if not supported_callbacks.is_observer(callback)]
        # The number of fused steps, None to measure it; every worker has the same.
        self.steps_per_execution = steps_per_execution
        if steps_per_execution is None and any(map(supported_callbacks.has_batch_hooks, others)):
            self.steps_per_execution = 1
        self.sees_test_batches = any(map(supported_callbacks.has_test_batch_hooks, others))
        self._callbacks = callbacks = supported_callbacks.of_worker(callbacks, chief=worker.identity.is_chief)
        self._names = supported_callbacks.checkpoint_names(callbacks)
        self._keras = built.context.keras
        self._model = built.program.model
        self._optimizer = built.optimizer
        self._directions = directions
        self._files = files
        self._save = save
        self._notice = notice
        self._now = worker.telemetry.now
        self._sum_over_workers = sum_over_workers(built.context.strategy, built.job.workers)
        self._batch_callbacks = list(filter(supported_callbacks.has_batch_hooks, self._callbacks))
        self._declared: dict[str, list[np.ndarray]] = {}
        self._job_rate = self._rate()
        self._published_at = self._now()
        self._check(built.context.datasets.validation is not None)
        self._report_batch_hooks(steps_per_execution)
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
        """Start the callbacks before the first step; `state` and `weights` are those of the restored checkpoint.

        `epochs_done` is its number of completed epochs, None in a new training; `epoch` (from 0) is its partial epoch,
        None between two epochs.
        """
        # Closures of the program know the model and not the callback, so these attributes are set on the model.
        self._model.optimizer = self._optimizer
        self._model.stop_training = False
        saving_model = _Float32SavingModel(self._model, self._save)
        for callback in self._callbacks:
            # A CSVLogger's earlier file must be in place before `set_model` or `on_train_begin` opens it.
            self._files.restore_csv_log(callback, epochs_done)
            self._call("set_params", {"verbose": 0, "epochs": epochs, "steps": steps_per_epoch}, only=[callback])
            self._call(
                "set_model", saving_model if _kind(callback) == "ModelCheckpoint" else self._model, only=[callback]
            )
        self._call("on_train_begin", {})
        for name, callback in zip(self._names, self._callbacks, strict=True):
            attribute = supported_callbacks.WEIGHT_ATTRIBUTES.get(_kind(callback))
            if attribute and name in weights:
                setattr(callback, attribute, list(weights[name]))
        if epoch is not None:
            # Only callbacks that record the epoch's number at its begin; the user's own may do so.
            only = [
                callback
                for callback in self._callbacks
                if supported_callbacks.kind(callback) is None or _kind(callback) in supported_callbacks.NEED_EPOCH_BEGIN
            ]
            self._call("on_epoch_begin", epoch, {}, only=only)
        # The state is restored last, so that the hooks above do not overwrite it.
        for name, callback in zip(self._names, self._callbacks, strict=True):
            kept = state.get(name)
            if isinstance(kept, Mapping):
                supported_callbacks.set_state(callback, kept)
            self._restore_declared(name, callback, state, weights)
        self._restore_rate(state.get(_RATE))
        self._count_steps(step)

    def set_fence(self, fence: Fence | None) -> None:
        """Publish files only while this attempt owns the run folder."""
        if fence is not None:
            self._files.check_fence = fence.check

    @property
    def restores_weights(self) -> bool:
        """Whether an EarlyStopping has restored its best weights, or may have."""
        return any(getattr(callback, "restore_best_weights", False) is True for callback in self._callbacks)

    @property
    def any_worker_stopped(self) -> bool:
        """Whether a callback on any worker stopped training; a collective operation that every worker must call."""
        return self.exist and self._sum_over_workers(float(bool(self._model.stop_training))) > 0

    def state(self) -> dict[str, JsonValue]:
        """Return the state for a checkpoint, by callback name."""
        state: dict[str, JsonValue] = {
            name: dict(supported_callbacks.get_state(callback))
            for name, callback in zip(self._names, self._callbacks, strict=True)
        }
        self._declared = {}
        for name, callback in zip(self._names, self._callbacks, strict=True):
            if (declared := state_methods(callback)) is not None:
                state[f"{name}{_DECLARED}"], self._declared[f"{name}{_DECLARED}"] = self._pack_declared(
                    callback, declared[0]
                )
        setters = [
            callback
            for callback in self._callbacks
            if supported_callbacks.is_user_defined(callback) or _kind(callback) in supported_callbacks.RATE_SETTERS
        ]
        if self._job_rate is not None and setters:
            state[_RATE] = {"job": self._job_rate, "now": self._rate()}
        return state

    def weights(self) -> dict[str, list[np.ndarray]]:
        """Return the arrays for a checkpoint, by file: the best weights of each EarlyStopping that restores them, and
        the arrays of the last `state()`.
        """
        weights = {name: arrays for name, arrays in self._declared.items() if arrays}
        for name, callback in zip(self._names, self._callbacks, strict=True):
            arrays = getattr(callback, supported_callbacks.WEIGHT_ATTRIBUTES.get(_kind(callback), ""), None)
            if arrays is not None:
                weights[name] = [np.array(array) for array in arrays]
        return weights

    def epoch_begins(self, epoch: int) -> None:
        self._call("on_epoch_begin", epoch, {})

    def batches_begin(self, first: int, step: int) -> None:
        """Call the hooks before an execution with batch `first` of the epoch, after `step` steps."""
        if self._batch_callbacks:
            self._count_steps(step)
            self._call("on_train_batch_begin", first, {}, only=self._batch_callbacks)

    def batches_end(self, last: int, logs: Mapping[str, float]) -> bool:
        """Call the hooks after an execution; return whether a callback stopped training."""
        if not self._stops_after_batches:
            return False
        self._call("on_train_batch_end", last, dict(logs), only=self._batch_callbacks)
        if self._now() - self._published_at >= _PUBLISH_EVERY:
            self._publish()
        return self.any_worker_stopped

    def validation_begins(self) -> None:
        self._call("on_test_begin", {})

    def test_batches_begin(self, first: int) -> None:
        """Call the hooks before a call of validation that begins with batch `first`."""
        self._call("on_test_batch_begin", first, {})

    def test_batches_end(self, last: int, logs: Mapping[str, float]) -> None:
        self._call("on_test_batch_end", last, dict(logs))

    def validation_ends(self, logs: Mapping[str, float]) -> None:
        self._call("on_test_end", dict(logs))

    def epoch_ends(self, epoch: int, logs: Mapping[str, float]) -> None:
        # All callbacks share one dict: ReduceLROnPlateau adds the learning rate, which a later CSVLogger writes.
        self._call("on_epoch_end", epoch, dict(logs))
        self._publish()

    def end(self, logs: Mapping[str, float]) -> None:
        """Call the hooks after the last step; EarlyStopping may restore its best weights."""
        self._call("on_train_end", dict(logs))
        self._publish()
        self._files.wait()

    def abandon(self) -> None:
        """Stop publishing and close the callbacks; other instances resume from an earlier step and write the files."""
        self._files.wait()
        for callback in self._callbacks:
            supported_callbacks.close(callback)

    def _pack_declared(self, callback: Any, getter: str) -> tuple[JsonValue, list[np.ndarray]]:
        try:
            return pack_state(self._call(getter, only=[callback]))
        except TypeError as error:
            where = f"{supported_callbacks.WHERE}[{self._callbacks.index(callback)}]"
            raise InvalidProgram(
                where,
                f"{type(callback).__name__}.{getter}(): {error}",
                expected="None, bool, int, float, str, arrays of numbers, lists and dicts of them",
            ) from None

    def _restore_declared(
        self, name: str, callback: Any, state: Mapping[str, JsonValue], weights: Mapping[str, Sequence[np.ndarray]]
    ) -> None:
        key, declared = f"{name}{_DECLARED}", state_methods(callback)
        if declared is not None:
            if key in state:
                unpacked = unpack_state(state[key], weights.get(key, ()))
                self._call(declared[1], unpacked, only=[callback])
        elif (
            supported_callbacks.is_user_defined(callback)
            and not supported_callbacks.is_observer(callback)
            and supported_callbacks.has_own_attributes(callback)
        ):
            text = f"{type(callback).__name__} declares no state (get_state() and set_state(state))"
            self._notice("CallbackState", f"{text}: its attributes are reset by a restart", level="Warning")

    def _publish(self) -> None:
        self._published_at = self._now()
        for callback in self._callbacks:
            for writer in keras_internals.writers(callback):
                with contextlib.suppress(Exception):
                    # A closed writer has flushed.
                    writer.flush()
        self._files.publish()

    def _call(self, hook: str, *arguments: Any, only: Sequence[Any] | None = None) -> Any:
        """Call a method of the callbacks and return the last one's result."""
        returned = None
        for callback in self._callbacks if only is None else only:
            try:
                returned = getattr(callback, hook)(*arguments)
            except Problem:
                raise
            except Exception as error:
                where = f"{supported_callbacks.WHERE}[{self._callbacks.index(callback)}]"
                raise Problem(where, describe_error(f"{type(callback).__name__}.{hook}", error)) from error
        return returned

    def _check(self, validated: bool) -> None:
        schedules = self._keras.module.optimizers.schedules
        rate = keras_internals.rate_or_schedule(self._optimizer)
        for number, callback in enumerate(self._callbacks):
            where, kind = f"{supported_callbacks.WHERE}[{number}]", _kind(callback)
            if kind in supported_callbacks.NEED_CONSTANT_RATE and isinstance(rate, schedules.LearningRateSchedule):
                raise InvalidProgram(
                    where,
                    f"{kind} sets the learning rate, and the optimizer's is a schedule ({type(rate).__name__})",
                    next_step="Leave one of them out; learningRateScaling.warmupSteps makes a schedule too.",
                )
            monitors = kind in ("EarlyStopping", "ReduceLROnPlateau") or getattr(callback, "save_best_only", False)
            if not monitors:
                continue
            names = log_names(list(self._directions), validated=validated)
            if callback.monitor not in names:
                text = f"{kind} monitors {callback.monitor!r}, which is none of {', '.join(names)}"
                self._notice("Monitor", text, level="Warning")
            elif not self._keras.legacy and callback.mode == "auto":
                # Keras 3 infers the mode from the metrics passed to `compile`, which may be none.
                mode = mode_of(callback.monitor, self._directions)
                if mode is None:
                    raise InvalidProgram(
                        where,
                        f"{kind} monitors {callback.monitor!r}, and nothing says whether higher or lower is better",
                        next_step="Give it mode='max' or mode='min'.",
                    )
                callback.mode = mode

    def _report_batch_hooks(self, steps_of_job: int | None) -> None:
        names = ", ".join(dict.fromkeys(type(callback).__name__ for callback in self._batch_callbacks))
        if not names or steps_of_job == 1:
            return
        if self.steps_per_execution == 1:
            text = (
                "called after every batch, so each step is an execution of its own, which is slower for small models; "
            )
            text += "training.stepsPerExecution: K calls it after each execution of K fused steps"
        else:
            text = "called after each execution of several fused steps, with the number of the last batch; "
            text += "training.stepsPerExecution: 1 calls it after every batch"
        self._notice("BatchCallbacks", f"{names}: {text}", level="Warning" if steps_of_job else "Info")

    def _count_steps(self, step: int) -> None:
        for callback in self._callbacks:
            if _kind(callback) == "TensorBoard":
                keras_internals.set_training_step(callback, self._model, step)

    def _rate(self) -> float | None:
        """Return the current learning rate, None if it is a schedule or there is no single one."""
        if callable(keras_internals.rate_or_schedule(self._optimizer)):
            return None
        return self._keras.learning_rate(self._optimizer)

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


class _Float32SavingModel:
    """Proxy of the model for ModelCheckpoint, whose `save` writes a float32 file under any training policy."""

    def __init__(self, model: Any, save: Callable[..., None]) -> None:
        self._model = model
        self._save = save

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def save(self, filepath: str, **options: Any) -> None:
        self._save(Path(filepath), **options)


def _kind(callback: Any) -> str:
    return supported_callbacks.kind(callback) or ""

"""State of Keras' callbacks, the callbacks that the loop supersedes, and the user's own. Does not import TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mptraining_api.problems import InvalidProgram
from mptraining_trainer import keras_internals

WHERE = "the program's callbacks"

WEIGHT_ATTRIBUTES: Mapping[str, str] = {"EarlyStopping": "best_weights"}
# Callbacks that set the optimizer's learning rate, or may do so.
RATE_SETTERS = frozenset({"LearningRateScheduler", "ReduceLROnPlateau", "LambdaCallback"})
# Callbacks that fail if the learning rate is a schedule, as they do under `fit`.
NEED_CONSTANT_RATE = frozenset({"LearningRateScheduler", "ReduceLROnPlateau"})
# Callbacks that record their position when an epoch begins, and need it on a resume within an epoch.
NEED_EPOCH_BEGIN = frozenset({"ModelCheckpoint", "TensorBoard"})

# Callbacks that are not called, because the trainer has the same function.
SUPERSEDED: Mapping[str, str] = {
    "BackupAndRestore": "checkpoints in the run folder do this, to the step (spec.checkpoint)",
    "TerminateOnNaN": "training.onNonFinite handles a loss that is NaN or infinite; Fail ends the run there",
    "ProgbarLogger": "progress is shown, and written to the run folder's events",
    "BaseLogger": "the logs hold the epoch's means already",
    "History": "the run folder's events hold every value (mptj compare)",
}
# Packages whose callbacks send metrics elsewhere: they keep no state that the training needs, and one worker's suffice.
OBSERVERS = frozenset({"aim", "clearml", "comet_ml", "dvclive", "mlflow", "neptune", "wandb"})
# The attribute by which a user's callback declares the same of itself.
OBSERVER_ATTRIBUTE = "observer"
_FAMILIES = ("keras", "tf_keras")
_BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")


def check_callbacks(callbacks: Sequence[Any], *, package: str) -> tuple[Any, ...]:
    """Return the callbacks if all are of this generation's `package`: keras or tf_keras. Raises InvalidProgram."""
    for number, callback in enumerate(callbacks):
        where = f"{WHERE}[{number}]"
        family = next((_family(base) for base in type(callback).__mro__ if base.__name__ == "Callback"), "")
        if family not in _FAMILIES:
            expected = f"an object of {package}.callbacks.Callback or of a class derived from it"
            raise InvalidProgram(where, f"{callback!r} is no Keras callback", expected=expected)
        if family != package:
            other = "Legacy" if family == "tf_keras" else "Keras3"
            raise InvalidProgram(
                where,
                f"a {type(callback).__name__} of {family}, but the model is of {package}",
                next_step=f"Import it from {package}, or set keras: {other}.",
            )
    return tuple(callbacks)


def kind(callback: Any) -> str | None:
    """Return the name of the Keras callback that it is or derives from; None for the user's own."""
    return _of_keras(callback, keras_internals.CALLBACK_STATE)


def superseded_reason(callback: Any) -> str | None:
    """Return the reason why the loop does not call the callback; None if it does."""
    name = _of_keras(callback, SUPERSEDED)
    return None if name is None or is_user_defined(callback) else SUPERSEDED[name]


def is_user_defined(callback: Any) -> bool:
    """Return whether the callback's class is the user's, derived from one of Keras' callbacks or not."""
    return _family(type(callback)) not in _FAMILIES


def is_observer(callback: Any) -> bool:
    """Return whether the callback only observes the training; one derived from a callback of Keras does more."""
    if kind(callback) is not None:
        return False
    return _family(type(callback)) in OBSERVERS or getattr(callback, OBSERVER_ATTRIBUTE, False) is True


def of_worker(callbacks: Sequence[Any], *, chief: bool) -> tuple[Any, ...]:
    """Return the callbacks that a worker calls: observers on the chief alone, all others on every worker."""
    return tuple(callback for callback in callbacks if chief or not is_observer(callback))


def has_own_attributes(callback: Any) -> bool:
    """Return whether a user's callback has its own attributes, which may change while it is called."""
    if kind(callback) is None:
        return bool(set(vars(callback)) - keras_internals.CALLBACK_BASE)
    # Keras' base class has attributes too: settings, and the saved state.
    return any("__init__" in vars(base) for base in type(callback).__mro__[:-1] if not _is_keras(base))


def _of_keras(callback: Any, names: Iterable[str]) -> str | None:
    return next((base.__name__ for base in type(callback).__mro__ if base.__name__ in names and _is_keras(base)), None)


def _is_keras(base: type) -> bool:
    return _family(base) in _FAMILIES


def _family(base: type) -> str:
    return base.__module__.split(".")[0]


def checkpoint_names(callbacks: Sequence[Any]) -> list[str]:
    """Return one name per callback for checkpoints: its class, with `-2` appended for the second of a class.

    A class that is not Keras' has the prefix `own.`.
    """
    seen: dict[str, int] = {}
    names = []
    for callback in callbacks:
        name = f"{'own.' if is_user_defined(callback) else ''}{type(callback).__name__}"
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return names


def get_state(callback: Any) -> dict[str, float | int | str | None]:
    """Return the state of Keras' part of a callback as JSON values; numbers that JSON cannot represent are strings."""
    attributes = keras_internals.CALLBACK_STATE.get(kind(callback) or "", ())
    return {name: _plain(getattr(callback, name)) for name in attributes if hasattr(callback, name)}


def set_state(callback: Any, state: Mapping[str, Any]) -> None:
    """Set the state that `get_state` returned for a callback of the same kind."""
    for name in keras_internals.CALLBACK_STATE.get(kind(callback) or "", ()):
        if name in state:
            value = state[name]
            setattr(callback, name, float(value) if isinstance(value, str) else value)


def has_batch_hooks(callback: Any) -> bool:
    """Return whether the callback does something at every batch."""
    if any(_overrides(callback, hook) for hook in _BATCH_HOOKS):
        return True
    if kind(callback) == "ModelCheckpoint":
        return bool(callback.save_freq != "epoch")
    if kind(callback) == "TensorBoard":
        traces = keras_internals.traces_batches(callback)
        return bool(callback.update_freq != "epoch" or traces or callback.write_steps_per_second)
    return False


def has_test_batch_hooks(callback: Any) -> bool:
    """Return whether the user's callback does something at every batch of validation."""
    return any(_overrides(callback, hook) for hook in ("on_test_batch_begin", "on_test_batch_end"))


def _overrides(callback: Any, hook: str) -> bool:
    """Return whether the user provides this hook, by a class or as a LambdaCallback's argument."""
    by = next((base for base in type(callback).__mro__ if hook in vars(base)), None)
    return hook in vars(callback) or (by is not None and not _is_keras(by))


def close(callback: Any) -> None:
    """Close the files of a CSVLogger or a TensorBoard; `on_train_end` would do more than that."""
    keras_internals.stop_tracing(callback)
    for writer in keras_internals.writers(callback):
        writer.close()
    file = getattr(callback, "csv_file", None)
    if file is not None:
        file.close()


def _plain(value: Any) -> float | int | str | None:
    if value is None or isinstance(value, (bool, int)):
        return value
    number = float(value)
    if not math.isfinite(number):
        return str(number)
    return number

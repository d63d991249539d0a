"""Which of Keras' callbacks the loop runs, what each remembers, and what is said of the others. No TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mptraining_api.problems import InvalidProgram

WHERE = "the program's callbacks"

# What a callback must find again after a restart: attributes that are the same in Keras 3.15 and tf_keras 2.21, or
# that one of them has alone. A LearningRateScheduler and a ReduceLROnPlateau also change the learning rate, which is
# kept apart; a CSVLogger remembers by its file; an EarlyStopping's best weights are arrays (`WEIGHTS`).
REMEMBERED: Mapping[str, tuple[str, ...]] = {
    "EarlyStopping": ("best", "best_epoch", "wait", "stopped_epoch"),
    "LearningRateScheduler": (),
    "ReduceLROnPlateau": ("best", "wait", "cooldown_counter"),
    "ModelCheckpoint": (
        "best",
        "epochs_since_last_save",
        "_current_epoch",
        "_batches_seen_since_last_saving",
        "_last_batch_seen",
    ),
    "TensorBoard": ("_global_train_batch", "_global_test_batch"),
    "CSVLogger": (),
    "LambdaCallback": (),
}
WEIGHTS: Mapping[str, str] = {"EarlyStopping": "best_weights"}
# Set the optimizer's learning rate, or may.
RATE_SETTERS = frozenset({"LearningRateScheduler", "ReduceLROnPlateau", "LambdaCallback"})
# Fail under a learning rate that is a schedule, as they do under `fit`.
NEED_CONSTANT_RATE = frozenset({"LearningRateScheduler", "ReduceLROnPlateau"})
# Only note where they are when an epoch begins, and need it when training goes on in the middle of one.
NOTE_THE_EPOCH = frozenset({"ModelCheckpoint", "TensorBoard"})

_INSTEAD = {
    "BackupAndRestore": "Leave it out: checkpoints in the run folder do this, to the step (spec.checkpoint).",
    "TerminateOnNaN": "Leave it out: the loop never goes on from a loss that is no number (training.onNonFinite).",
    "ProgbarLogger": "Leave it out: progress is shown, and written to the run folder's events.",
    "BaseLogger": "Leave it out: the logs hold the epoch's means already.",
    "History": "Leave it out: the run folder's events hold every value (mptj compare), as does a CSVLogger.",
}
_OTHERWISE = "Express it as a LambdaCallback, or train with your own model.fit as program.script."


def checked(callbacks: Sequence[Any], *, package: str) -> tuple[Any, ...]:
    """The callbacks, each of them one that the loop runs. `package` is this generation's: keras or tf_keras.

    Raises InvalidProgram that names the first that is none, and what to do instead.
    """
    for number, callback in enumerate(callbacks):
        where = f"{WHERE}[{number}]"
        kind = type(callback)
        family = next((base.__module__ for base in kind.__mro__ if base.__name__ == "Callback"), "").split(".")[0]
        if family not in ("keras", "tf_keras"):
            raise InvalidProgram(where, f"{callback!r} is no Keras callback", expected=", ".join(REMEMBERED))
        if family != package:
            other = "Legacy" if family == "tf_keras" else "Keras3"
            raise InvalidProgram(
                where,
                f"a {kind.__name__} of {family}, but the model is of {package}",
                next_step=f"Import it from {package}, or set keras: {other}.",
            )
        if kind.__name__ not in REMEMBERED or kind.__module__.split(".")[0] != family:
            raise InvalidProgram(
                where,
                f"{kind.__name__}, which the training loop does not run",
                expected=", ".join(REMEMBERED),
                next_step=_INSTEAD.get(kind.__name__, _OTHERWISE),
            )
    return tuple(callbacks)


def names(callbacks: Sequence[Any]) -> list[str]:
    """One name for each, by which a checkpoint knows it: its class, and `-2` behind the second of a class."""
    seen: dict[str, int] = {}
    found = []
    for callback in callbacks:
        kind = type(callback).__name__
        seen[kind] = seen.get(kind, 0) + 1
        found.append(kind if seen[kind] == 1 else f"{kind}-{seen[kind]}")
    return found


def remembered(callback: Any) -> dict[str, float | int | str | None]:
    """The state of a callback as JSON values; numbers that JSON does not know stand there as words."""
    attributes = REMEMBERED[type(callback).__name__]
    return {name: _plain(getattr(callback, name)) for name in attributes if hasattr(callback, name)}


def restore(callback: Any, state: Mapping[str, Any]) -> None:
    """Gives the callback what `remembered` took from another one of its kind."""
    for name in REMEMBERED[type(callback).__name__]:
        if name in state:
            value = state[name]
            setattr(callback, name, float(value) if isinstance(value, str) else value)


def calls_batches(callback: Any) -> bool:
    """Whether the callback does something at every batch."""
    kind = type(callback).__name__
    if kind == "ModelCheckpoint":
        return bool(callback.save_freq != "epoch")
    if kind == "TensorBoard":
        traces = getattr(callback, "_should_trace", False)
        return bool(callback.update_freq != "epoch" or traces or callback.write_steps_per_second)
    hooks = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
    return kind == "LambdaCallback" and any(hook in vars(callback) for hook in hooks)


def close(callback: Any) -> None:
    """Closes what a CSVLogger or a TensorBoard writes to; `on_train_end` would do more than that."""
    if getattr(callback, "_is_tracing", False):
        # There is one profiler in a process.
        callback._stop_profiler(save=False)
    for writer in getattr(callback, "_writers", {}).values():
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

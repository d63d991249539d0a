"""Checkpoints of model, inner optimizer, metrics and random state, each published completely or not at all.

    checkpoints/step-0000000500/model.safetensors  optimizer.safetensors  metrics.safetensors  random.safetensors
                                state.json

The array files are written first (`checkpoints.files`), `state.json` with their checksums last: a folder without it is
no checkpoint. A fence prevents an older attempt that still runs from publishing, and from replacing the files of a
newer attempt. Variables are saved as plain arrays, so that a run with another precision, number of workers or Keras
patch version can read them. Every worker calls `save`, because reading per-replica variables is a collective operation;
only the chief writes, through the outbox. A checkpoint that a bucket does not take is superseded by the next one.

Checkpoints of a higher step than that of the restored one belong to a future that was abandoned: the next save deletes
them, so that a later attempt cannot resume from them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from mptraining_api.events import Saved
from mptraining_api.problems import InvalidData, Problem, ResumeRefused, StorageUnavailable
from mptraining_storage import preconditions, storage, transfers
from mptraining_trainer import keras_internals
from mptraining_trainer.checkpoints.files import delete_unfinished, read, scratch_folder, write
from mptraining_trainer.checkpoints.provenance import Origin, changes
from mptraining_trainer.checkpoints.state import STATE, CheckpointState, checkpoints, step_of
from mptraining_trainer.devices.replica_variables import ReplicaValues, shape_matches
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.numerics.recovery import WEIGHTS_NOT_FINITE, NonFinite
from mptraining_trainer.report.telemetry import Notify
from mptraining_trainer.worker import Worker

_NAME = "checkpoint"


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A complete checkpoint in memory: arrays by file."""

    uri: str
    state: CheckpointState
    arrays: Mapping[str, list[Any]]


def load_newest(folder: str, notice: Notify) -> LoadedCheckpoint | None:
    """Return the newest whole checkpoint, its state and arrays of the same step; None if there is none.

    A damaged one is skipped with a warning. Raise ResumeRefused if all are damaged.
    """
    damaged = []
    for uri in reversed(checkpoints(folder)):
        try:
            state = CheckpointState.read(storage.read(storage.join(uri, STATE)))
            return LoadedCheckpoint(uri, state, read(uri, state.files))
        except StorageUnavailable:
            # The checkpoint is not damaged: falling back would lose work that the next attempt can read.
            raise
        except OSError as error:
            # The local scratch disk failed; that does not mean that the checkpoint is damaged.
            raise StorageUnavailable(tempfile.gettempdir(), f"no scratch space: {error}") from error
        except (Problem, ValueError) as error:
            damaged.append(uri)
            notice(
                "CheckpointDamaged", f"{uri} cannot be read ({error}); falling back to the one before", level="Warning"
            )
    if damaged:
        raise ResumeRefused(
            damaged[0], "no checkpoint of this run is whole", next_step="Restore it, or set training.resume: Never."
        )
    return None


@dataclass(frozen=True)
class Contents:
    """The Keras objects of a checkpoint, by file name; `optimizer` is the inner one.

    With `rate_from_job` the learning rate comes from the job and is no part of the checkpoint: it may change from one
    attempt to the next, as may the batch size that scales it.
    """

    keras: Keras
    model: Any
    optimizer: Any
    metrics: list[Any]
    rate_from_job: bool = True
    # Returns arrays to save with the variables, one file per list, such as the best weights so far.
    extra_arrays: Callable[[], Mapping[str, list[Any]]] = dict
    # Further TensorFlow variables that accumulate over an epoch.
    epoch_sums: tuple[Any, ...] = ()
    # Further optimizers of a model with its own train_step, such as a GAN's.
    more_optimizers: tuple[Any, ...] = ()

    def variables(self) -> Mapping[str, list[Any]]:
        """Return the TensorFlow variables in a fixed order, by file."""
        of_metrics = [variable for metric in self.metrics for variable in self.keras.variables(metric)]
        return {
            "model": self.keras.variables(self.model),
            "optimizer": self.keras.variables_of(self._of_optimizer()),
            "metrics": [*of_metrics, *self.epoch_sums],
            "random": self.keras.untracked_states(self.model),
        }

    def kinds(self) -> dict[str, tuple[str, ...]]:
        """Return the kinds of the objects by file: other kinds may have variables of the same shapes."""
        return {
            "optimizer": tuple(type(optimizer).__name__ for optimizer in (self.optimizer, *self.more_optimizers)),
            "metrics": tuple(f"{type(metric).__name__} {metric.name}" for metric in self.metrics),
        }

    def _of_optimizer(self) -> list[Any]:
        if self.optimizer is None:
            # A script may compile its model without an optimizer and apply gradients by others.
            return []
        # Keras 3 counts a constant learning rate among the optimizer's variables, tf_keras does not.
        rate = keras_internals.rate_or_schedule(self.optimizer) if self.rate_from_job else None
        main = [variable for variable in self.optimizer.variables if variable is not rate]
        return [*main, *(variable for optimizer in self.more_optimizers for variable in optimizer.variables)]


@dataclass(eq=False, repr=False)
class Checkpointer:
    """Saves, loads and restores the checkpoints of one run folder, and reports each save.

    Only the chief of `worker` writes, by its outbox and after its fence. `origin` is written into each state, and a
    restore warns about its changes. `strategy` is the one under which the variables were created; default: TensorFlow's
    default strategy.
    """

    folder: str
    contents: Contents
    worker: Worker
    _: KW_ONLY
    max_to_keep: int
    strategy: Any = None
    origin: Origin | None = None

    def __post_init__(self) -> None:
        self._telemetry, self._fence, self._outbox = self.worker.telemetry, self.worker.fence, self.worker.outbox
        self._values = ReplicaValues(self.strategy or tf.distribute.get_strategy())
        self.last_step: int | None = None
        self._restored_step: int | None = None
        # The arrays of `Contents.extra_arrays` from the restored checkpoint.
        self.extra_arrays: dict[str, list[Any]] = {}

    def save(self, state: CheckpointState) -> None:
        """Copy all variables now and write the copy while training continues.

        Raise the error of an earlier write: NonFinite if its weights were not finite, Superseded if a newer attempt has
        claimed the run folder. A bucket that does not answer is an error of `wait` alone.
        """
        self.last_step = state.step
        of_files = self.contents.variables()
        if not self.worker.identity.is_chief:
            for variables in of_files.values():
                self._values.take_part_in_read(variables)
            return
        if self._outbox.withdraw(_NAME):
            self._telemetry.notice(
                "CheckpointSuperseded", "saving takes longer than the steps between two checkpoints: some are left out"
            )
        arrays = {name: self._arrays(variables) for name, variables in of_files.items()}
        arrays |= {name: _numbered(extra) for name, extra in self.contents.extra_arrays().items()}
        if not storage.is_remote(self.folder):
            self.wait()
        state = state.model_copy(update={"origin": self.origin, "kinds": self.contents.kinds()})
        self._outbox.put(_NAME, lambda: self._write(state, arrays))

    def wait(self) -> None:
        """Wait until the last save is published; raise its error."""
        self._outbox.wait(_NAME)

    def restore(self, loaded: LoadedCheckpoint | None = None) -> CheckpointState | None:
        """Assign the variables of `loaded`, or of the newest whole checkpoint; return its state, None if there is none.

        Raise ResumeRefused for a checkpoint of another model or optimizer. The state of other metrics is not restored,
        which is reported.
        """
        loaded = loaded or load_newest(self.folder, self._telemetry.notice)
        if loaded is None:
            return None
        state = self.assign(loaded)
        self._warn_about_changes(state)
        return state

    def begin_again(self) -> None:
        """Abandon all checkpoints: the next save deletes them."""
        self._restored_step = 0

    def assign(self, loaded: LoadedCheckpoint, *, only: str | None = None) -> CheckpointState:
        """Assign the arrays to all variables, or to those of one file; return the state. Raise ResumeRefused."""
        state, of_files = loaded.state, self.contents.variables()
        to_assign = {name: variables for name, variables in of_files.items() if only in (None, name)}
        # All files are checked before any is assigned, so that a refused checkpoint does not change the model.
        for name, variables in list(to_assign.items()):
            arrays, kinds = loaded.arrays.get(name, []), self.contents.kinds().get(name)
            difference = _difference(name, variables, arrays)
            if difference is None and kinds != state.kinds.get(name, kinds):
                difference = f"{_named(state.kinds[name])} where this {name} has {_named(kinds)}"
            if difference is None:
                continue
            if name != "metrics":
                raise ResumeRefused(
                    loaded.uri,
                    f"a checkpoint of another {name}: {difference}",
                    next_step="Give another output folder, or set training.resume: Never.",
                )
            # Metrics are no part of what was learned. The sum of the losses is among them.
            del to_assign[name]
            state = state.model_copy(update={"loss_steps": 0.0})
            self._telemetry.notice(
                "MetricsReset",
                f"the program's metrics changed since the checkpoint of step {state.step} ({difference}): this epoch's "
                "means count from that step on",
                level="Warning",
            )
        for name, variables in to_assign.items():
            self._values.assign(variables, loaded.arrays.get(name, []))
        self.extra_arrays = {name: kept for name, kept in loaded.arrays.items() if name not in of_files}
        self.last_step = self._restored_step = state.step
        return state

    def load(self) -> LoadedCheckpoint | None:
        """See `load_newest`."""
        return load_newest(self.folder, self._telemetry.notice)

    def _warn_about_changes(self, state: CheckpointState) -> None:
        if state.origin is None or self.origin is None:
            return
        changed = changes(state.origin, self.origin)
        if changed:
            message = f"since the checkpoint of step {state.step} these changed: {'; '.join(changed)}. "
            message += "Training resumes from it, but not bit for bit as without them"
            self._telemetry.notice("ChangedSinceCheckpoint", message, level="Warning")

    def _arrays(self, variables: list[Any]) -> dict[str, Any]:
        arrays = self._values.read(variables)
        names = (variable.name for variable in variables)
        return {f"{number:05d} {name}": array for number, (name, array) in enumerate(zip(names, arrays, strict=True))}

    def _write(self, state: CheckpointState, arrays: Mapping[str, dict[str, Any]]) -> None:
        began = self._telemetry.now()
        for array in arrays["model"].values():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise NonFinite(state.step, WEIGHTS_NOT_FINITE)
        uri = storage.join(self.folder, f"step-{state.step:010d}")
        if self._restored_step is not None:
            for younger in checkpoints(self.folder):
                if step_of(younger) > self._restored_step:
                    self._delete(younger)
            self._restored_step = None
        for last in (False, False, True):
            try:
                with scratch_folder(self.folder) as scratch:
                    files = write(Path(scratch), arrays)
                    self._publish(uri, Path(scratch), state.model_copy(update={"files": files}))
                break
            except preconditions.Conflict:
                # Two attempts wrote this step at the same time; the one that owns the folder writes it again.
                if last or self._fence is None:
                    raise
            except StorageUnavailable as problem:
                self._telemetry.notice(
                    "CheckpointDelayed",
                    f"{self.folder}: {problem.found}; training continues, and the newest checkpoint is written when "
                    "storage answers",
                    level="Warning",
                )
                raise
            except (InvalidData, OSError):
                # A newer attempt may have swept this one's unpublished files: then Superseded is the cause.
                if self._fence is not None:
                    self._fence.check()
                raise
        self._telemetry.emit(
            Saved,
            step=state.step,
            uri=uri,
            bytes=sum(file.bytes for file in files.values()),
            seconds=round(self._telemetry.now() - began, 3),
        )
        for old in checkpoints(self.folder)[: -self.max_to_keep]:
            self._delete(old)
        delete_unfinished(self.folder)

    @staticmethod
    def _delete(uri: str) -> None:
        # The state is deleted first, so that a half-deleted folder is no checkpoint.
        storage.delete(storage.join(uri, STATE))
        storage.delete_prefix(uri)

    def _publish(self, uri: str, scratch: Path, state: CheckpointState) -> None:
        state_uri = storage.join(uri, STATE)
        if self._fence is not None:
            self._fence.check()
        there = {storage.join(uri, stored.name): stored.version for stored in storage.list_objects(uri)}
        if state_uri in there:
            # An earlier attempt saved the same step: its state is deleted before its files change.
            storage.delete(state_uri, version=there[state_uri])
        to = {scratch / name: storage.join(uri, name) for name in state.files}
        transfers.upload(to, replacing=there, keep_source=False)
        if self._fence is not None:
            self._fence.check()
        storage.write(state_uri, state.to_json().encode(), replacing=None)


def _numbered(arrays: list[Any]) -> dict[str, Any]:
    return {f"{number:05d}": np.asarray(array, order="C") for number, array in enumerate(arrays)}


def _difference(name: str, variables: list[Any], arrays: list[Any]) -> str | None:
    if len(arrays) != len(variables):
        return f"{len(arrays)} variables where this {name} has {len(variables)}"
    for variable, array in zip(variables, arrays, strict=True):
        if not shape_matches(variable, array.shape):
            shape = list(array.shape)
            return f"shape {shape} where this {name}'s {variable.name!r} has {list(variable.shape)}"
    return None


def _named(kinds: tuple[str, ...] | None) -> str:
    return ", ".join(kinds or ()) or "none"

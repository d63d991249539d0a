"""Checkpoints of model, inner optimizer, metrics and random state, each published completely or not at all.

    checkpoints/step-0000000500/model.safetensors  optimizer.safetensors  metrics.safetensors  random.safetensors
                                state.json

The array files are written first (`checkpoints.files`), `state.json` with their checksums last: a folder without it is
no checkpoint. A fence prevents an older attempt that still runs from publishing, and from replacing the files of a
newer attempt. Variables are saved as plain arrays, so that a run with another precision, number of workers or Keras
patch version can read them. Every worker calls `save`, because reading per-replica variables is a collective operation;
only the chief writes, in a background thread.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from mptraining_api.events import Saved
from mptraining_api.problems import InvalidData, Problem, ResumeRefused, StorageUnavailable
from mptraining_records.storage import preconditions, storage, transfers
from mptraining_trainer.checkpoints.files import delete_unfinished, read, scratch_folder, write
from mptraining_trainer.checkpoints.provenance import Origin, changes
from mptraining_trainer.checkpoints.state import STATE, CheckpointState, checkpoints
from mptraining_trainer.distribution.replica_variables import ReplicaValues, shape_matches
from mptraining_trainer.fence import Fence
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.numerics.recovery import WEIGHTS_NOT_FINITE, NonFinite
from mptraining_trainer.reporting.telemetry import Telemetry


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A complete checkpoint in memory: arrays by file."""

    uri: str
    state: CheckpointState
    arrays: Mapping[str, list[Any]]


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
    # Returns arrays to save beside the variables, one file per list, such as the best weights so far.
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

    def _of_optimizer(self) -> list[Any]:
        if self.optimizer is None:
            # A script may compile its model without an optimizer and apply gradients by others.
            return []
        # Keras 3 counts a constant learning rate among the optimizer's variables, tf_keras does not.
        rate = getattr(self.optimizer, "_learning_rate", None) if self.rate_from_job else None
        own = [variable for variable in self.optimizer.variables if variable is not rate]
        return [*own, *(variable for optimizer in self.more_optimizers for variable in optimizer.variables)]


class Checkpointer:
    """Saves, loads and restores the checkpoints of one run folder, and reports each save."""

    def __init__(
        self,
        folder: str,
        contents: Contents,
        *,
        max_to_keep: int,
        chief: bool,
        telemetry: Telemetry,
        fence: Fence | None = None,
        strategy: Any = None,
        origin: Origin | None = None,
    ) -> None:
        """`origin` is written into each state, and a restore warns about its changes.

        `strategy` is the one under which the variables were created; default: TensorFlow's default strategy.
        """
        self._values = ReplicaValues(strategy or tf.distribute.get_strategy())
        self._origin = origin
        self._folder = folder
        self._contents = contents
        self._max_to_keep = max_to_keep
        self._chief = chief
        self._telemetry = telemetry
        self._fence = fence
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        self.last_step: int | None = None
        # The arrays of `Contents.extra_arrays` from the restored checkpoint.
        self.extra_arrays: dict[str, list[Any]] = {}

    def save(self, state: CheckpointState) -> None:
        """Copy all variables now and write the copy while training continues.

        Raise the error of the previous write: NonFinite if its weights were not finite, Superseded if a newer attempt
        has claimed the run folder.
        """
        self.last_step = state.step
        of_files = self._contents.variables()
        if not self._chief:
            for variables in of_files.values():
                self._values.take_part_in_read(variables)
            return
        arrays = {name: self._arrays(variables) for name, variables in of_files.items()}
        arrays |= {name: _numbered(extra) for name, extra in self._contents.extra_arrays().items()}
        self.wait()
        self._pending = self._writer.submit(self._write, state.model_copy(update={"origin": self._origin}), arrays)

    def wait(self) -> None:
        """Wait until the last save is published; raise its error."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def restore(self) -> CheckpointState | None:
        """Load the newest complete checkpoint into the variables; return None if there is no checkpoint.

        A damaged checkpoint is skipped with a warning. Raise ResumeRefused for one of another model or optimizer.
        """
        loaded = self.load()
        if loaded is None:
            return None
        self.assign(loaded)
        self._warn_about_changes(loaded.state)
        return loaded.state

    def assign(self, loaded: LoadedCheckpoint, *, only: str | None = None) -> None:
        """Assign the arrays to all variables, or to those of one file. Raise ResumeRefused."""
        of_files = self._contents.variables()
        wanted = {name: variables for name, variables in of_files.items() if only in (None, name)}
        # All files are checked before any is assigned, so that a refused checkpoint does not change the model.
        for name, variables in wanted.items():
            _require_fit(loaded.uri, name, variables, loaded.arrays.get(name, []))
        for name, variables in wanted.items():
            self._values.assign(variables, loaded.arrays.get(name, []))
        self.extra_arrays = {name: kept for name, kept in loaded.arrays.items() if name not in of_files}
        self.last_step = loaded.state.step

    def load(self) -> LoadedCheckpoint | None:
        """Return the newest complete checkpoint, None if there is none. Raise ResumeRefused if all are damaged."""
        damaged = []
        for uri in reversed(checkpoints(self._folder)):
            try:
                return _read(uri)
            except StorageUnavailable:
                # The checkpoint is not damaged: falling back would lose work that the next attempt can read.
                raise
            except OSError as error:
                # The local scratch disk failed; that does not mean that the checkpoint is damaged.
                raise StorageUnavailable(tempfile.gettempdir(), f"no scratch space: {error}") from error
            except (Problem, ValueError) as error:
                damaged.append(uri)
                message = f"{uri} cannot be read ({error}); falling back to the one before"
                self._telemetry.notice("CheckpointDamaged", message, level="Warning")
        if damaged:
            raise ResumeRefused(
                damaged[0],
                "no checkpoint of this run is whole",
                next_step="Restore it, or set training.resume: Never.",
            )
        return None

    def _warn_about_changes(self, state: CheckpointState) -> None:
        if state.origin is None or self._origin is None:
            return
        changed = changes(state.origin, self._origin)
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
        uri = storage.join(self._folder, f"step-{state.step:010d}")
        for last in (False, False, True):
            try:
                with scratch_folder(self._folder) as scratch:
                    files = write(Path(scratch), arrays)
                    self._publish(uri, Path(scratch), state.model_copy(update={"files": files}))
                break
            except preconditions.Conflict:
                # Two attempts wrote this step at the same time; the one that owns the folder writes it again.
                if last or self._fence is None:
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
        for old in checkpoints(self._folder)[: -self._max_to_keep]:
            # The state is deleted first, so that a half-deleted folder is no checkpoint.
            storage.delete(storage.join(old, STATE))
            storage.delete_prefix(old)
        delete_unfinished(self._folder)

    def _publish(self, uri: str, scratch: Path, state: CheckpointState) -> None:
        state_uri = storage.join(uri, STATE)
        if self._fence is not None:
            self._fence.check()
        there = {storage.join(uri, each.name): each.version for each in storage.list_objects(uri)}
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


def _read(uri: str) -> LoadedCheckpoint:
    state = CheckpointState.read(storage.read(storage.join(uri, STATE)))
    return LoadedCheckpoint(uri, state, read(uri, state.files))


def _require_fit(uri: str, name: str, variables: list[Any], arrays: list[Any]) -> None:
    if len(arrays) != len(variables):
        what = f"{len(arrays)} variables where this {name} has {len(variables)}"
    else:
        pairs = zip(variables, arrays, strict=True)
        differing = next((pair for pair in pairs if not shape_matches(pair[0], pair[1].shape)), None)
        if differing is None:
            return
        variable, array = differing
        what = f"shape {list(array.shape)} where this {name}'s {variable.name!r} has {list(variable.shape)}"
    raise ResumeRefused(
        uri,
        f"a checkpoint of another {name}: {what}",
        next_step="Give another output folder, or set training.resume: Never.",
    )

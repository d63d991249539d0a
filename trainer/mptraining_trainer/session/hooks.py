"""Hooks of the fit loop at the ends of epochs, executions and validation: callbacks and best weights.

A checkpoint is written before the hooks of its epoch's end run, because the machine may be about to be preempted. So
each checkpoint records the last step whose hooks have run, and a training that resumes from it first runs those that
are pending.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from mptraining_api.run_folder import Best
from mptraining_trainer.checkpoints.state import CheckpointState
from mptraining_trainer.devices.replica_variables import ReplicaValues
from mptraining_trainer.export.export import take_snapshot, write_keras_file
from mptraining_trainer.export.float32_model import load_archive, own_objects, write_float32_archive
from mptraining_trainer.fence import Fence
from mptraining_trainer.model import supported_callbacks
from mptraining_trainer.session.best_weights import BestWeights, best_weights
from mptraining_trainer.session.build import BuildResult
from mptraining_trainer.session.callback_files import CallbackFiles
from mptraining_trainer.session.keras_callbacks import Callbacks
from mptraining_trainer.step.steps_per_execution import Boundaries
from mptraining_trainer.worker import Worker

_BEST = "best"
_TRAINING = "training"


class Hooks:
    """Methods that the fit loop calls; `best` is None if the last weights are exported."""

    def __init__(self, callbacks: Callbacks, best: BestWeights | None) -> None:
        self.callbacks = callbacks
        self.best = best
        self._boundaries = Boundaries(total_steps=1, steps_per_epoch=1, validation_every=None, checkpoint_every=None)
        # The last step whose hooks have run, and the number of epochs that have ended by then.
        self._done_step = 0
        self._epochs = 0
        # Whether a callback ended the training.
        self.training_stopped = False
        # Whether a callback stopped it after a batch, so that validation and the end of the epoch follow here.
        self.epoch_ended_early = False

    @property
    def best_to_export(self) -> Best | None:
        """The step whose weights are exported; None for those that the model has at the end."""
        return self.best.best if self.best is not None else None

    def begin(
        self,
        boundaries: Boundaries,
        resumed: CheckpointState | None,
        weights: Mapping[str, Sequence[Any]],
        *,
        fence: Fence | None,
    ) -> None:
        """Restore the state before the first step. `weights` are arrays of the `resumed` checkpoint.

        `fence` is the chief's; it guards the publication of the callbacks' files.
        """
        step, state = (resumed.step, resumed.callbacks) if resumed else (0, {})
        self._boundaries = boundaries
        kept: Any = state.get(_TRAINING)
        if kept:
            self._done_step, self._epochs = int(kept["turned"]), int(kept["epochs"])
            self.training_stopped, self.epoch_ended_early = bool(kept["stopped"]), bool(kept.get("cut"))
        elif resumed:
            # An older version saved this state only with callbacks: count the hooks of all earlier steps as done.
            self._done_step, self._epochs = step, (step - boundaries.offset) // boundaries.steps_per_epoch
        if self.best is not None:
            self.best.restore(state.get(_BEST), weights.get(_BEST, ()))
        self.callbacks.set_fence(fence)
        inside = step > 0 and (not boundaries.is_epoch_start(step) or self.has_pending(step))
        self.callbacks.begin(
            epochs=-(-(boundaries.total_steps - boundaries.offset) // boundaries.steps_per_epoch),
            steps_per_epoch=boundaries.steps_per_epoch,
            state=state,
            weights=weights,
            epochs_done=self._epochs if resumed else None,
            epoch=boundaries.epoch(step) - 1 if inside else None,
            step=step,
        )

    def has_pending(self, step: int) -> bool:
        """Return whether the hooks of this step's end have not run although its checkpoint was written."""
        if self.training_stopped or step in (0, self._done_step):
            return False
        if self.epoch_ended_early:
            return True
        has_hooks = self.callbacks.exist or self.best is not None
        return self._boundaries.is_validation_due(step) or (has_hooks and self._boundaries.is_epoch_start(step))

    def execution_begins(self, step: int) -> None:
        """Call the hooks before an execution, after `step` steps."""
        done_before, index = divmod(step - self._boundaries.offset, self._boundaries.steps_per_epoch)
        if index == 0:
            self.callbacks.epoch_begins(done_before)
        self.callbacks.batches_begin(index, step)

    def execution_ends(self, step: int, metrics: Mapping[str, float]) -> None:
        last = (step - 1 - self._boundaries.offset) % self._boundaries.steps_per_epoch
        self.epoch_ended_early = self.callbacks.batches_end(last, metrics)

    def run_step_end(self, step: int, trained: Mapping[str, float], validated: Mapping[str, float]) -> bool:
        """Call the hooks of a step's end, after validation; return whether a callback has ended the training.

        `trained` are the metrics since the epoch began, `validated` those of validation with `val_`.
        """
        if self._done_step == step or self.training_stopped:
            return self.training_stopped
        epoch_ends = step > 0 and (self._boundaries.is_epoch_start(step) or self.epoch_ended_early)
        if self.best is not None:
            # The means of a partial epoch are not comparable; they count only at the last step of the job.
            whole = (epoch_ends and not self.epoch_ended_early) or step >= self._boundaries.total_steps
            self.best.update(step, {**(trained if whole else {}), **validated})
        if epoch_ends:
            epoch = self._boundaries.epoch(step)
            self.callbacks.epoch_ends(epoch - 1, {**trained, **validated})
            self.training_stopped = self.callbacks.any_worker_stopped
            self._epochs = epoch
        if epoch_ends or validated:
            self._done_step = step
        return self.training_stopped

    def select_export(
        self, step: int, metrics: Mapping[str, float], weights: Sequence[Any], notice: Callable[..., None]
    ) -> tuple[int, Mapping[str, float], Sequence[Any]]:
        """Return and report step, metrics and weights to export: the best if the job wants them, else the last."""
        if self.best is None:
            return step, metrics, weights
        best = self.best.best
        if best is None:
            notice(
                "Best", "the monitored metric was never a finite number: the last weights are exported", level="Warning"
            )
            return step, metrics, weights
        notice("Best", f"the weights of step {best.step} are exported: {best.monitor} {best.value:.6g}")
        return best.step, self.best.metrics, self.best.weights

    def end_message(self, *, first_step: int, last_step: int) -> str:
        """Return how training ended, as text."""
        boundaries, which = self._boundaries, ""
        if self.best is not None and self.best.best is not None:
            best = self.best.best
            which = f"; exported step {best.step} with {best.monitor} {best.value:.6g}"
        if self.training_stopped:
            return f"a callback stopped it at step {last_step} of {boundaries.total_steps}{which}"
        already = "already " if first_step >= boundaries.total_steps else ""
        return f"{already}trained to the last step{which}"

    def state(self) -> dict[str, JsonValue]:
        """Return the hooks' state for a checkpoint."""
        state = self.callbacks.state()
        if self.best is not None:
            state[_BEST] = self.best.state()
        state[_TRAINING] = {
            "turned": self._done_step,
            "epochs": self._epochs,
            "stopped": self.training_stopped,
            "cut": self.epoch_ended_early,
        }
        return state

    def weights(self) -> dict[str, list[Any]]:
        """Return the arrays for a checkpoint, by file."""
        weights = self.callbacks.weights()
        if self.best is not None and self.best.weights:
            weights[_BEST] = self.best.weights
        return weights


def make_hooks(worker: Worker, built: BuildResult) -> Hooks:
    """Return the hooks of a built model: its program's callbacks, and the best weights if the job exports them.

    Call it before any write to the run folder. Raise InvalidProgram and InvalidSpec for invalid callbacks or monitors.
    """
    notice, program = worker.telemetry.notice, built.program
    validated = built.context.datasets.validation is not None
    directions = built.loop.metric_directions
    best = best_weights(built.job.export, program.model, directions, validated=validated, notice=notice)
    if worker.scalars is not None and any(
        supported_callbacks.kind(callback) == "TensorBoard" for callback in program.callbacks
    ):
        worker.scalars.write_beside_callback()
    scratch = Path(tempfile.mkdtemp(prefix="mptraining-callbacks-"))
    worker.exit_stack.callback(shutil.rmtree, scratch, ignore_errors=True)
    files = CallbackFiles(worker.folder, scratch, chief=worker.identity.is_chief, notice=notice, outbox=worker.outbox)
    return Hooks(Callbacks(worker, built, files, _keras_files(worker, built), directions), best)


def _keras_files(worker: Worker, built: BuildResult) -> Callable[..., None]:
    """Return the function that writes ModelCheckpoint's file, as the export's `model.keras` is written.

    A file of a mixed-precision model opens only where that policy works. The first file is compared with the live
    model; the later ones differ from it in numbers alone. Every worker must call the function.
    """
    program, context, notice = built.program, built.context, worker.telemetry.notice
    keras, verified = context.keras, None

    def save(path: Path, **options: Any) -> None:
        nonlocal verified
        preserved = ReplicaValues(context.strategy).preserved(keras.forward_pass_state(program.model))
        with tempfile.TemporaryDirectory(prefix="mptraining-") as scratch:
            with preserved if verified is None else nullcontext():
                snapshot = take_snapshot(
                    program.model,
                    keras,
                    Path(scratch),
                    policy=keras.policy,
                    inputs=built.inputs,
                    callable_here=verified is None and built.job.accelerator.kind != "tpu",
                )
            if snapshot.failure is not None:
                raise ValueError(snapshot.failure)
            path.parent.mkdir(parents=True, exist_ok=True)
            # tf_keras also writes the SavedModel and HDF5 formats.
            target = path if path.suffix == ".keras" else Path(scratch, "copy.keras")
            if verified is None:
                verified = write_keras_file(program.model, keras, snapshot, target)
                if verified.failure or verified.policy != "float32":
                    reason = verified.failure or f"it computes under {verified.policy}"
                    notice("ModelCheckpoint", f"its files have the model as it is: {reason}", level="Warning")
                verified = replace(verified, model=None, exact=None)
            if verified.failure or verified.policy != "float32":
                shutil.copyfile(snapshot.archive, target)
            else:
                write_float32_archive(snapshot.archive, target)
            if target != path:
                copy = load_archive(target, keras, verified.policy, own_objects(program.model, keras))
                copy.save(str(path), **options)

    return save

"""Training by a script: what the trainer reports, saves, profiles and exports of its fits; `fit_wrapper` runs it."""

from __future__ import annotations

import inspect
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from mptraining_api import events, run_folder
from mptraining_api.launch import SOURCE_FOLDER
from mptraining_api.problems import Preempted, Problem, ResumeRefused, StorageUnavailable, Superseded
from mptraining_api.programs.fields import Script
from mptraining_storage import storage
from mptraining_trainer.checkpoints.checkpoint import Checkpointer, Contents, LoadedCheckpoint
from mptraining_trainer.checkpoints.state import CheckpointState, FitState, checkpoints, step_of
from mptraining_trainer.devices.coordination import exit_barrier
from mptraining_trainer.devices.strategy import started_fields
from mptraining_trainer.export.export import publish, take_snapshot
from mptraining_trainer.export.float32_model import policy_of
from mptraining_trainer.keras_backend import Keras, load
from mptraining_trainer.model.program import ExportedModel
from mptraining_trainer.report.errors import is_peer_error
from mptraining_trainer.report.system_metrics import SystemMeter
from mptraining_trainer.report.telemetry import peak_memory_bytes
from mptraining_trainer.scripts.fit_wrapper import Addition, Stop, run_script
from mptraining_trainer.scripts.job_of_script import scales_its_loss
from mptraining_trainer.scripts.tuner_folder import STEPS_FILE, TunerFolder
from mptraining_trainer.scripts.tuner_search import TrialNumber, TunerSearch
from mptraining_trainer.session.non_finite import warnings_of_success
from mptraining_trainer.session.profiling import DeviceMeter, Profiling
from mptraining_trainer.training_result import TrainingResult
from mptraining_trainer.worker import Worker

_LONGEST_ERROR = 500
_NO_FIT = "the script never called model.fit in its own process: no model is exported and no checkpoint was written"


def train_script(
    worker: Worker, script: Script, strategy: Any, keras: Keras, environment: Mapping[str, str]
) -> TrainingResult:
    """Run the script to its end and export the model that its last `fit` trained. Raise Problem."""
    job, telemetry = worker.job, worker.telemetry
    tuner_folder = TunerFolder(worker.folder, worker.exit_stack)
    first_step = _earlier_steps(worker, tuner_folder)
    telemetry.emit(
        events.Started,
        **started_fields(job, keras, strategy),
        first_step=first_step,
        start_up_seconds=telemetry.process_seconds(),
    )
    context = _Script(worker, keras, strategy, first_step)
    began = telemetry.now()
    try:
        model = run_script(
            job,
            script,
            keras,
            None if job.strategy == "None" else strategy,
            context,
            Path(environment.get(SOURCE_FOLDER, ".")),
            TunerSearch(tuner_folder, context, workers=job.workers),
        )
    finally:
        # A script that is preempted or fails needs its last epoch's checkpoint too.
        seconds = telemetry.now() - began
        context.finish()
    steps = context.step - context.first_step
    policy = context.policy or job.precision.policy
    exported: str | None = None
    warnings = warnings_of_success(context.metrics, skipped=context.skipped_steps, steps=steps)
    if model is None:
        warnings = (*warnings, _NO_FIT)
        telemetry.notice("NoModel", _NO_FIT, level="Warning")
    else:
        exported = _export(worker, context, model, policy)
        if exported is None and worker.identity.is_chief:
            warnings = (*warnings, "the model could not be exported")
    return TrainingResult(
        step=context.step,
        metrics=context.metrics,
        model=exported,
        step_seconds=seconds / steps if steps else None,
        training_seconds=seconds,
        skipped_steps=context.skipped_steps,
        skipped_records=0,
        message="the script ran to its end",
        policy=policy,
        warnings=warnings,
    )


def _earlier_steps(worker: Worker, tuner_folder: TunerFolder) -> int:
    """Return the steps of earlier attempts, from which this one counts: a script's own count begins at 0 again."""
    tuner_folder.download(only=STEPS_FILE)
    saved = checkpoints(storage.join(worker.folder, run_folder.CHECKPOINTS))
    return max(tuner_folder.read_steps(), *map(step_of, saved[-1:]), 0)


def _export(worker: Worker, context: _Script, model: Any, policy: str) -> str | None:
    """Export the model; return its path in the run folder, None if the export failed and on other workers."""
    job, keras = worker.job, context.keras_of(model)
    with tempfile.TemporaryDirectory(prefix="mptraining-") as scratch:
        try:
            # Reading per-replica variables is a collective operation: no worker reads them after the exit barrier.
            snapshot = take_snapshot(
                model,
                keras,
                Path(scratch),
                policy=policy,
                inputs=context.inputs,
                callable_here=job.accelerator.kind != "tpu",
            )
        except Exception as error:  # noqa: BLE001 - the script's model may raise any error
            context.report_failure(Addition.EXPORT, error)
            exit_barrier(worker.identity)
            return None
        exit_barrier(worker.identity)
        if not worker.identity.is_chief:
            return None
        precision = job.precision.model_copy(update={"policy": policy})
        trained = replace(worker, job=job.model_copy(update={"precision": precision}))
        program = ExportedModel(model=model, rebuild={"builder": "script", "arguments": {}})
        try:
            return publish(trained, program, keras, None, context.step, context.metrics, snapshot)
        except StorageUnavailable:
            # The next attempt has no steps left and only exports the model.
            raise
        except Exception as error:  # noqa: BLE001 - the script itself has succeeded
            context.report_failure(Addition.EXPORT, error)
    return None


def _scales_its_loss(model: Any) -> bool:
    """Return whether the model's own `train_step` scales its loss; True if its text is not known."""
    try:
        return scales_its_loss(inspect.getsource(type(model).train_step))
    except (OSError, TypeError):
        return True


class _Script:
    """The context of the script's fits; see `fit_wrapper.Context`."""

    def __init__(self, worker: Worker, keras: Keras, strategy: Any, first_step: int) -> None:
        self._worker = worker
        self._keras = keras
        self._strategy = strategy
        self._checkpointer: Checkpointer | None = None
        # Model and optimizer of `_checkpointer`: a script may have several, one after the other.
        self._checkpointer_of: tuple[Any, Any] = (None, None)
        self._loaded: LoadedCheckpoint | None = None
        self._profiling = Profiling(worker)
        self._devices = DeviceMeter(worker.job)
        self._system = SystemMeter(worker.telemetry.now)
        self._reported_at = -math.inf
        # A checkpoint's number must only grow, even if the one before it cannot be restored.
        self.first_step = first_step
        self.step = first_step
        self.metrics: dict[str, float] = {}
        # The policy of the last fitted model's layers.
        self.policy: str | None = None
        # The last fitted model.
        self._model: Any = None
        # The inputs of its first batch; None if they are not known.
        self.inputs: Any = None
        # The trial that runs, of a search with KerasTuner.
        self._trial: TrialNumber | None = None
        # The steps of this attempt's fits that Keras' loss scaling skipped.
        self.skipped_steps = 0

    def progress(self, step: int, epoch: int, metrics: Mapping[str, float], *, epoch_ended: bool = False) -> None:
        telemetry = self._worker.telemetry
        self.step, self.metrics = self.first_step + step, dict(metrics)
        if not epoch_ended and telemetry.now() - self._reported_at < self._worker.progress_seconds:
            return
        self._reported_at = telemetry.now()
        telemetry.emit(
            events.Progress,
            step=self.step,
            epoch=epoch,
            trial=self._trial.number if self._trial else None,
            trials=self._trial.of if self._trial else None,
            metrics=self.metrics,
            learning_rate=self._learning_rate(),
            precision=self.policy,
            peak_memory_bytes=peak_memory_bytes(),
            **self._devices.read(),
            **self._system.read(),
        )

    def _learning_rate(self) -> float | None:
        optimizer = getattr(self._model, "optimizer", None)
        return None if optimizer is None else self.keras_of(self._model).learning_rate(optimizer)

    def before_batch(self, step: int) -> None:
        self._profiling.before_execution(self.first_step + step)

    def after_batch(self, step: int) -> None:
        self.step = self.first_step + step
        self._profiling.after_execution(self.step)

    def save(self, model: Any, fits: Sequence[FitState]) -> None:
        job, identity = self._worker.job, self._worker.identity
        self._checkpoints(model).save(
            CheckpointState(
                step=self.step,
                attempt=identity.attempt,
                incarnation=identity.incarnation,
                seed=0,
                epoch=sum(fit.epochs for fit in fits),
                examples=0,
                fingerprint="",
                policy=self.policy or job.precision.policy,
                replicas=job.replicas,
                fits=tuple(fits),
            )
        )

    def load_earlier_fits(self, model: Any) -> Sequence[FitState]:
        self._loaded = self._checkpoints(model).load()
        if self._loaded is None:
            return ()
        return self._loaded.state.fits

    def restore(self, model: Any, *, whole: bool) -> bool:
        assert self._loaded is not None
        if not model.variables:
            self.notice(
                "NotResumable",
                "the model has no variables before its first fit, so training starts again; give it a keras.Input",
                level="Warning",
            )
            return False
        epoch = self._loaded.state.epoch
        try:
            if whole:
                if model.optimizer is not None:
                    # The script's own strategy is not the current one here.
                    with (getattr(model, "distribute_strategy", None) or tf.distribute.get_strategy()).scope():
                        model.optimizer.build(list(model.trainable_variables))
                self._checkpoints(model).assign(self._loaded)
                self._loaded = None
                self.notice("Resumed", f"resuming after epoch {epoch}; scripts resume by epoch")
            else:
                self._checkpoints(model).assign(self._loaded, only="model")
        except ResumeRefused as refused:
            cause = (
                f"the model {model.name!r} is another one than that of the checkpoint, so this restart begins at "
                f"step 0: {refused.found}"
                if whole
                else f"the model {model.name!r} was trained by an earlier fit and is not part of the last one's "
                "checkpoint: it has its initial weights"
            )
            self.notice("NotRestored", cause, level="Warning")
            return False
        return True

    def on_fit(self, model: Any, policy: str, replicas: int) -> None:
        job = self._worker.job
        self.policy, self._model = policy, model
        if policy != job.precision.policy:
            message = (
                f"the layers of {model.name!r} compute under {policy}, which the script sets; the job's policy is "
            )
            self.notice("OwnPolicy", f"{message}{job.precision.policy}", level="Warning")
        if replicas > 1 and "train_step" in self.keras_of(model).own_steps(model):
            self.notice(
                "OwnTrainStep",
                f"the model's own train_step runs on {replicas} replicas, whose gradients are summed: a loss that is "
                f"no Keras loss (tf.reduce_mean of something) has to be divided by {replicas}, as Keras does with its",
            )
        scaled = type(model.optimizer).__name__ == "LossScaleOptimizer" and hasattr(model.optimizer, "scale_loss")
        if scaled and "train_step" in self.keras_of(model).own_steps(model) and not _scales_its_loss(model):
            self.notice(
                "LossNotScaled",
                f"{type(model).__name__}.train_step does not call optimizer.scale_loss, by whose scale Keras 3 divides "
                "the gradients under mixed_float16, so that they become almost zero. precision: {policy: float32} or "
                "mixed_bfloat16 needs no scale",
                level="Warning",
            )
        if scaled and replicas > 1:
            self.notice(
                "LossScalingWrong",
                f"Keras 3's own loss scaling is wrong with {replicas} replicas: an Inf in the gradients of one makes "
                "the weights infinite. Set keras: Legacy (and import tf_keras or tf.keras), or a policy of "
                "mixed_bfloat16 or float32 in the script",
                level="Warning",
            )

    def after_fit(self, skipped: int) -> None:
        self.skipped_steps += skipped

    def keep_inputs(self, inputs: Any) -> None:
        self.inputs = inputs

    def on_best(self, model: Any, metrics: Mapping[str, float]) -> None:
        self.policy, self.metrics = policy_of(model, self.keras_of(model)), dict(metrics)

    def check_stop(self) -> None:
        if self.stop_requested():
            raise Stop

    def wait(self, seconds: float) -> bool:
        return self._worker.preemption.wait(seconds)

    def on_trial(self, trial: TrialNumber | None, folder: TunerFolder) -> None:
        folder.write_steps(self.step)
        self._trial = trial

    def report_failure(self, what: Addition, error: Exception) -> None:
        if isinstance(error, Superseded | ResumeRefused | Preempted):
            raise error
        if what == Addition.READ and (isinstance(error, StorageUnavailable) or self._worker.job.workers > 1):
            # Starting again would lose a checkpoint that the next attempt can read, and all workers must start alike.
            raise error
        if self._worker.job.workers > 1 and is_peer_error(error):
            raise error
        message = error if isinstance(error, Problem) else f"{type(error).__name__}: {error}"
        text = " ".join(str(message).split())[:_LONGEST_ERROR]
        topic, words = what.value
        self.notice(topic, f"{words}, which the script does not depend on: {text}", level="Warning")

    def notice(self, topic: str, message: str, *, level: str = "Info") -> None:
        self._worker.telemetry.notice(topic, message, level=level)

    def keras_of(self, model: Any) -> Keras:
        """Return the model's generation of Keras: under Legacy a script may still use Keras 3."""
        return self._keras if isinstance(model, self._keras.module.Model) else load("Keras3")

    def stop_requested(self) -> bool:
        return self._worker.preemption.stop_requested()

    def finish(self) -> None:
        """Wait until the last checkpoint and the profile are published."""
        try:
            self._profiling.finish(self.step)
            if self._checkpointer is not None:
                self._checkpointer.wait()
        except Exception as error:  # noqa: BLE001 - the script itself has succeeded
            self.report_failure(Addition.SAVE, error)

    def _checkpoints(self, model: Any) -> Checkpointer:
        if self._checkpointer_of[0] is not model or self._checkpointer_of[1] is not model.optimizer:
            if self._checkpointer is not None:
                self._checkpointer.wait()
            self._checkpointer_of = model, model.optimizer
            worker = self._worker
            self._checkpointer = Checkpointer(
                storage.join(worker.folder, run_folder.CHECKPOINTS),
                # Callbacks such as ReduceLROnPlateau change a script's learning rate during training.
                Contents(self.keras_of(model), model, model.optimizer, [], rate_from_job=False),
                worker,
                max_to_keep=worker.job.checkpoint.max_to_keep,
                # The strategy is the job's, or one that the script created.
                strategy=getattr(model, "distribute_strategy", None) or self._strategy,
            )
        assert self._checkpointer is not None
        return self._checkpointer

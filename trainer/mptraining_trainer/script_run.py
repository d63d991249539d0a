"""A script program's run: its own `model.fit` trains, with our policy, strategy, telemetry and epoch checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mptraining_api import events, run_folder
from mptraining_api.launch import SOURCE_FOLDER
from mptraining_api.problems import ResumeRefused
from mptraining_records import storage
from mptraining_trainer.checkpoint import Checkpointer, Contents, Loaded
from mptraining_trainer.checkpoint_state import CheckpointState
from mptraining_trainer.device_meter import DeviceMeter
from mptraining_trainer.fits import FitState
from mptraining_trainer.keras_generation import Keras
from mptraining_trainer.parting import part
from mptraining_trainer.profiling import Profiling
from mptraining_trainer.program import Program
from mptraining_trainer.publish import publish
from mptraining_trainer.runtime import ground
from mptraining_trainer.script import run_script
from mptraining_trainer.telemetry import peak_memory_bytes
from mptraining_trainer.worker import Trained, Worker


def train_script(worker: Worker, strategy: Any, keras: Keras, environment: Mapping[str, str]) -> Trained:
    """Runs the script to its end and exports the model that its last `fit` trained. Raises Problem."""
    job, telemetry = worker.job, worker.telemetry
    telemetry.say(events.Started, **ground(job, keras, strategy))
    context = _Script(worker, keras, strategy)
    worker.preemption.spare_children()
    began = telemetry.now()
    model = run_script(
        job,
        keras,
        None if job.strategy == "None" else strategy,
        context,
        Path(environment.get(SOURCE_FOLDER, ".")),
    )
    seconds = telemetry.now() - began
    context.finish()
    steps = context.step - context.first_step
    exported = None
    if model is None:
        telemetry.notice("NoModel", "the script never called model.fit, so nothing is exported", level="Warning")
    else:
        # Reading variables that are kept per replica takes every worker.
        weights = model.get_weights()
        part(worker.seat)
        if worker.seat.is_chief:
            wrapped = Program(model, rebuild={"builder": "script", "arguments": {}})
            exported = publish(worker, wrapped, keras, None, context.step, context.metrics, weights)
    return Trained(
        step=context.step,
        metrics=context.metrics,
        model=exported,
        step_seconds=seconds / steps if steps else None,
        training_seconds=seconds,
        skipped_steps=0,
        skipped_records=0,
        message="the script ran to its end",
    )


class _Script:
    """What the script's fits tell us and ask of us; see `script.Context`."""

    def __init__(self, worker: Worker, keras: Keras, strategy: Any) -> None:
        self._worker = worker
        self._keras = keras
        self._strategy = strategy
        self._checkpointer: Checkpointer | None = None
        # Which model and optimizer it is of: a script may have several, one after the other.
        self._of: tuple[Any, Any] = (None, None)
        self._loaded: Loaded | None = None
        self._profiling = Profiling(worker)
        self._devices = DeviceMeter(worker.job)
        self._said_at = -math.inf
        # Steps of earlier attempts; a script counts from 0 again, a checkpoint's number must only grow.
        self.first_step = 0
        self.step = 0
        self.metrics: dict[str, float] = {}

    def progress(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        telemetry = self._worker.telemetry
        self.step, self.metrics = self.first_step + step, dict(metrics)
        validated = any(name.startswith("val_") for name in metrics)
        if not validated and telemetry.now() - self._said_at < self._worker.progress_seconds:
            return
        self._said_at = telemetry.now()
        telemetry.say(
            events.Progress,
            step=self.step,
            epoch=epoch,
            metrics=self.metrics,
            peak_memory_bytes=peak_memory_bytes(),
            **self._devices.read(),
        )

    def before_batch(self, step: int) -> None:
        self._profiling.before(self.first_step + step)

    def after_batch(self, step: int) -> None:
        self.step = self.first_step + step
        self._profiling.after(self.step)

    def save(self, model: Any, fits: Sequence[FitState]) -> None:
        job, seat = self._worker.job, self._worker.seat
        self._checkpoints(model).save(
            CheckpointState(
                step=self.step,
                attempt=seat.attempt,
                incarnation=seat.incarnation,
                seed=0,
                epoch=sum(fit.epochs for fit in fits),
                examples=0,
                fingerprint="",
                policy=job.precision.policy,
                replicas=job.replicas,
                fits=tuple(fits),
            )
        )

    def earlier(self, model: Any) -> Sequence[FitState]:
        self._loaded = self._checkpoints(model).load()
        if self._loaded is None:
            return ()
        if not model.built:
            self._worker.telemetry.notice(
                "NotResumable",
                "the model has no variables before its first fit, so this restart begins anew; give it a keras.Input",
                level="Warning",
            )
            return ()
        state = self._loaded.state
        self.first_step = self.step = state.step
        self._worker.telemetry.notice("Resumed", f"going on after epoch {state.epoch}; scripts resume by epoch")
        return state.fits

    def restore(self, model: Any, *, whole: bool) -> None:
        assert self._loaded is not None
        if whole:
            self._keras.build_optimizer(model.optimizer, model.trainable_variables)
            self._checkpoints(model).assign(self._loaded)
            self._loaded = None
            return
        try:
            self._checkpoints(model).assign(self._loaded, only="model")
        except ResumeRefused:
            self._worker.telemetry.notice(
                "NotRestored",
                f"the model {model.name!r} was trained by an earlier fit and is not part of the last one's checkpoint: "
                "it has its initial weights",
                level="Warning",
            )

    def stop_requested(self) -> bool:
        return self._worker.preemption.asked()

    def finish(self) -> None:
        """Waits for the last checkpoint and the profile to be published."""
        self._profiling.finish(self.step)
        if self._checkpointer is not None:
            self._checkpointer.wait()

    def _checkpoints(self, model: Any) -> Checkpointer:
        if self._of[0] is not model or self._of[1] is not model.optimizer:
            if self._checkpointer is not None:
                self._checkpointer.wait()
            self._of = model, model.optimizer
            worker, telemetry = self._worker, self._worker.telemetry
            self._checkpointer = Checkpointer(
                storage.join(worker.folder, run_folder.CHECKPOINTS),
                # Callbacks such as ReduceLROnPlateau change a script's rate as it goes.
                Contents(self._keras, model, model.optimizer, [], rate_from_job=False),
                max_to_keep=worker.job.checkpoint.max_to_keep,
                chief=worker.seat.is_chief,
                telemetry=telemetry,
                fence=worker.fence,
                # The job's, or one that the script opened itself.
                strategy=getattr(model, "distribute_strategy", None) or self._strategy,
            )
        assert self._checkpointer is not None
        return self._checkpointer

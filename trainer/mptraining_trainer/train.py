"""One worker's run from job file to exported model, in labelled sections.

`train` prepares devices, data and precision, and calls `run_session` until one session reaches the last step. The
sections call `devices.strategy` for devices, `data.batching` and `data.pipeline` for batches, `model.program` for
the model, `session.policy_trials` and `numerics.recovery` for the precision policy, and `session.fit` for the fit
loop, which calls `step.train_loop`.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from mptraining_api import events, run_folder
from mptraining_api.launch import SOURCE_FOLDER
from mptraining_api.problems import InvalidData, ResumeRefused
from mptraining_api.resolve.batch_size import scaling_suggestion
from mptraining_api.resolved_job import ResolvedJob, ResolvedTraining
from mptraining_records.reading import order
from mptraining_records.reading.order import Position
from mptraining_storage import storage
from mptraining_trainer.checkpoints.checkpoint import Checkpointer, Contents, LoadedCheckpoint, load_newest
from mptraining_trainer.checkpoints.claim import claim_folder
from mptraining_trainer.checkpoints.provenance import origin
from mptraining_trainer.checkpoints.state import CheckpointState, precision_from_checkpoint
from mptraining_trainer.data import pipeline
from mptraining_trainer.data.batching import Batching, Share
from mptraining_trainer.data.dataset import open_splits
from mptraining_trainer.data.pipeline import Split
from mptraining_trainer.data.preprocess import Preprocess
from mptraining_trainer.devices.coordination import (
    barrier,
    exit_barrier,
    mean_over_workers,
    require_agreement,
    wait_for_peers,
)
from mptraining_trainer.devices.replica_variables import ReplicaValues
from mptraining_trainer.devices.strategy import make_strategy, started_fields
from mptraining_trainer.export.export import publish, take_snapshot
from mptraining_trainer.export.serving_forms import require_packages
from mptraining_trainer.forked_child import user_code
from mptraining_trainer.host import native_bfloat16
from mptraining_trainer.job.kinds import EnsembleJob, PredictionJob, ScriptJob, TrainingJob, kind_of
from mptraining_trainer.keras_backend import Keras, load
from mptraining_trainer.numerics.loss_scaling import LossScaler, ScalerState
from mptraining_trainer.numerics.recovery import (
    WEIGHTS_NOT_FINITE,
    NonFinite,
    PrecisionState,
    Rollback,
    plan_rollback,
    supported_policies,
)
from mptraining_trainer.prediction.ensemble import average
from mptraining_trainer.prediction.run_prediction import predict
from mptraining_trainer.scripts.train_script import train_script
from mptraining_trainer.session.build import BuildResult, RunContext, assemble
from mptraining_trainer.session.fit import FitLoop, Session, Start
from mptraining_trainer.session.hooks import Hooks, make_hooks
from mptraining_trainer.session.non_finite import (
    NonFiniteMonitor,
    describe_records,
    is_mostly_skipped,
    warnings_of_success,
)
from mptraining_trainer.session.policy_trials import measure_policies
from mptraining_trainer.session.profiling import profile_pauses
from mptraining_trainer.step.steps_per_execution import Boundaries
from mptraining_trainer.step.train_loop import make_iterator
from mptraining_trainer.training_result import TrainingResult
from mptraining_trainer.worker import Worker


def run_session(session: Session, available: Sequence[str]) -> TrainingResult | Rollback:
    """Restore, announce, fit and finish; return the rollback if it has to begin again. Raise Diverged."""
    start = restore(session)
    session = announce(session, start)
    fit_loop = make_fit_loop(session, start)
    try:
        metrics = fit(session, start, fit_loop)
    except NonFinite as incident:
        fit_loop.abandon()
        session.hooks.callbacks.abandon()
        return _rollback(session, incident, available, session.spent_seconds + fit_loop.training_seconds)
    return finish(session, start, fit_loop, metrics)


def restore(session: Session) -> Start:
    """Restore the loop's own values from the checkpoint; require that all workers begin alike."""
    worker, built, state = session.worker, session.built, session.state
    context, job = built.context, built.job
    step, position = 0, context.first
    if state is not None:
        step = state.step
        position = replace(position, seed=state.seed, epoch=state.epoch, examples=state.examples, mixed=state.mixed)
        _warn_about_batch_size(state, built, worker.telemetry.notice)
        if built.scaler is not None:
            _restore_scaler(built.scaler, state, job.precision.policy)
        built.loop.sync_after_restore()
    data, validation = context.datasets.training, context.datasets.validation
    if job.workers > 1:
        require_agreement(
            context.strategy,
            worker.identity,
            data=f"{data.dataset.fingerprint} {validation.dataset.fingerprint if validation else None}",
            checkpoint=f"{step} {position} {session.precision_state}",
            folder=worker.folder,
        )
    with_validation = validation is not None
    boundaries = _boundaries(job, context.training, context.batching, step, position, with_validation=with_validation)
    return Start(step, position, boundaries)


def announce(session: Session, start: Start) -> Session:
    """Report the findings about the program, and the start or the recovery, which the returned session has."""
    worker, built, rollback = session.worker, session.built, session.rollback
    job, telemetry, datasets = built.job, worker.telemetry, built.context.datasets
    for finding in built.findings:
        telemetry.notice(finding.topic, finding.message, level="Warning")
    if rollback is not None:
        precision_state = rollback.with_recovery(start.step)
        telemetry.emit(events.Recovered, **dict(precision_state.recoveries[-1]))
        return replace(session, precision_state=precision_state)
    telemetry.emit(
        events.Started,
        **started_fields(job, built.context.keras, built.context.strategy),
        global_batch_size=job.global_batch_size,
        total_steps=start.boundaries.total_steps,
        steps_per_epoch=start.boundaries.steps_per_epoch,
        first_step=start.step,
        steps_per_execution=session.hooks.callbacks.steps_per_execution,
        train_examples=datasets.training.count,
        validation_examples=datasets.validation.count if datasets.validation else None,
        parameters=int(sum(math.prod(variable.shape) for variable in built.program.model.trainable_variables)),
        features=datasets.training.columns.describe(),
        cache=datasets.meter.cache,
        first_record_seconds=datasets.meter.first_record_seconds,
        start_up_seconds=telemetry.process_seconds(),
        measured=session.precision_state.trials,
    )
    return session


def make_fit_loop(session: Session, start: Start) -> FitLoop:
    """Return the fit loop of the session, as the checkpoint left it."""
    worker, built = session.worker, session.built
    context, scaler, validation = built.context, built.scaler, built.context.datasets.validation
    monitor = NonFiniteMonitor(
        session.precision_state.policy,
        context.training.on_non_finite,
        worker.telemetry.notice,
        partial(describe_records, context),
        skipped=scaler.state().skipped_steps if scaler else 0,
        total_steps=start.boundaries.total_steps,
    )
    iterator = _validation_iterator(context, validation, built.preprocess) if validation else None
    fit_loop = FitLoop(session, start.boundaries, monitor, iterator)
    if session.state is not None:
        fit_loop.resume(session.state)
    return fit_loop


def fit(session: Session, start: Start, fit_loop: FitLoop) -> dict[str, float]:
    """Train to the last step, and wait for the last checkpoint; return the last metrics. Raise NonFinite."""
    built, job, arrays = session.built, session.built.job, session.checkpointer.extra_arrays
    session.hooks.begin(start.boundaries, session.state, arrays, fence=session.worker.fence)
    datasets, steps = built.context.datasets, max(0, start.boundaries.total_steps - start.step)
    iterator = built.make_iterator(start.position, steps)
    with (
        fit_loop.skipped_records.publish_at_end(),
        pipeline.raise_reading_problems(datasets.training, datasets.validation),
    ):
        metrics = fit_loop.run(iterator, start.step, start.position)
    # A callback may have ended the training early.
    fit_loop.non_finite.require_trained(fit_loop.last_step)
    finite = fit_loop.wait_for_save()
    if job.workers > 1 and any(mean_over_workers(built.context.strategy, [float(not finite)])):
        raise NonFinite(fit_loop.last_step, WEIGHTS_NOT_FINITE)
    return metrics


def finish(session: Session, start: Start, fit_loop: FitLoop, metrics: dict[str, float]) -> TrainingResult:
    """Set the final weights, export the model and return the result. No rollback can follow here."""
    worker, built, hooks = session.worker, session.built, session.hooks
    context, keras, model = built.context, built.context.keras, built.program.model
    # EarlyStopping may restore its best weights.
    keras.finalize(built.optimizer, model.trainable_variables)
    hooks.callbacks.end(metrics)
    changed = keras.sets_final_weights(built.optimizer) or hooks.callbacks.restores_weights
    if hooks.best_to_export is None and changed:
        # The metrics of the weights that are exported, which no validation has seen. `fit` does not validate here, and
        # a layer that counts its calls must not count these.
        with ReplicaValues(context.strategy).preserved(keras.forward_pass_state(model)):
            metrics |= fit_loop.validate_final_weights()
    # Reading per-replica variables is a collective operation, so every worker takes the snapshot.
    at, logs, weights = hooks.select_export(fit_loop.last_step, metrics, model.get_weights(), worker.telemetry.notice)
    scratch = Path(worker.exit_stack.enter_context(tempfile.TemporaryDirectory(prefix="mptraining-")))
    snapshot = take_snapshot(
        model,
        keras,
        scratch,
        policy=keras.policy,
        inputs=built.inputs,
        weights=weights,
        callable_here=built.job.accelerator.kind != "tpu",
    )
    exit_barrier(worker.identity)
    exported = None
    if worker.identity.is_chief:
        trained, columns = replace(worker, job=built.job), context.datasets.training.columns
        exported = publish(trained, built.program, keras, context.example, at, logs, snapshot, columns=columns)
    return TrainingResult(
        step=fit_loop.last_step,
        metrics=metrics,
        model=exported,
        step_seconds=fit_loop.speed.step_seconds,
        training_seconds=session.spent_seconds + fit_loop.training_seconds,
        skipped_steps=fit_loop.skipped_steps,
        loss_scale=fit_loop.loss_scale,
        gradient_norm=fit_loop.gradient_norm,
        precision_state=fit_loop.precision_state,
        input_bound_percent=fit_loop.speed.steady.bound_percent,
        input_meter=context.datasets.meter,
        skipped_records=len(fit_loop.skipped_records.records),
        message=hooks.end_message(first_step=start.step, last_step=fit_loop.last_step),
        best=hooks.best_to_export,
        warnings=warnings_of_success(metrics, skipped=fit_loop.skipped_steps, steps=fit_loop.last_step),
    )


def _warn_about_batch_size(state: CheckpointState, built: BuildResult, notice: Callable[..., None]) -> None:
    """Warn if the examples per update changed since the checkpoint and the learning rate is not scaled."""
    before, now = state.examples_per_step, built.context.batching.examples_per_step
    if before is None or before == now or built.job.learning_rate.factor != 1.0:
        return
    per_epoch = built.context.batching.steps_per_pass
    written = scaling_suggestion(type(built.optimizer).__name__, before, now, steps_per_epoch=per_epoch)
    text = f"an update sees {now} examples, {before} before this attempt, and the learning rate stays as written"
    notice("BatchSizeChanged", f"{text}; {written}", level="Warning")


def _rollback(session: Session, incident: NonFinite, available: Sequence[str], spent_seconds: float) -> Rollback:
    """Return the rollback after the last save has finished. Raise Diverged if there is none."""
    with suppress(NonFinite):
        session.checkpointer.wait()
    on_non_finite = session.built.context.training.on_non_finite
    rollback = plan_rollback(session.precision_state, incident, available, on_non_finite)
    if rollback is None:
        exit_barrier(session.worker.identity)
        raise incident from None
    return replace(rollback, seconds=spent_seconds)


def _boundaries(
    job: ResolvedJob,
    training: ResolvedTraining,
    batching: Batching,
    step: int,
    position: Position,
    *,
    with_validation: bool,
) -> Boundaries:
    """Return the steps at which training that resumes at this step and position pauses and ends.

    Epochs are passes over the data unless the job counts them in steps. After a resume with another batch size, the
    earlier passes took a different number of steps than they would with the current one.
    """
    per_epoch = training.steps_per_epoch or batching.steps_per_pass
    offset = 0 if training.steps_per_epoch else step - batching.steps_before(position)
    # `initial_epoch` counts the epochs before it as trained.
    offset -= training.initial_epoch * per_epoch
    total = training.total_steps or (training.epochs or 1) * per_epoch + offset
    return Boundaries(
        total_steps=total,
        steps_per_epoch=per_epoch,
        validation_every=(training.validation_every_steps or per_epoch * training.validation_freq)
        if with_validation
        else None,
        validates_at_end=training.validation_freq == 1,
        checkpoint_every=job.checkpoint.every_steps or per_epoch,
        offset=offset,
        pauses=profile_pauses(job.profile),
    )


def _validation_iterator(context: RunContext, validation: Split, preprocess: Preprocess) -> tuple[Any, int]:
    """Return an endless iterator, and the number of steps that covers every example once."""
    job, size = context.job, context.kind.global_batch_size
    iterator = make_iterator(
        context.strategy,
        lambda: validation.validation(
            examples_per_step=size,
            share=context.share,
            batch=size // job.replicas,
            rows=context.evaluation_rows,
            preprocess=preprocess,
        ),
    )
    return iterator, -(-validation.count // size)


def _restore_model(
    worker: Worker, built: BuildResult, hooks: Hooks, loaded: LoadedCheckpoint | None, *, rolled_back: bool
) -> tuple[Checkpointer, CheckpointState | None]:
    """Restore the model from `loaded`, or from the last checkpoint after a rollback; return the checkpoint's state.

    The state is None to begin at step 0. Raise ResumeRefused.
    """
    context, loop, telemetry = built.context, built.loop, worker.telemetry
    checkpointer = Checkpointer(
        _checkpoints(worker),
        Contents(
            context.keras,
            built.program.model,
            built.optimizer,
            loop.metrics,
            epoch_sums=loop.epoch_sums,
            extra_arrays=hooks.weights,
            more_optimizers=loop.more_optimizers,
        ),
        worker,
        max_to_keep=built.job.checkpoint.max_to_keep,
        strategy=context.strategy,
        origin=context.origin,
    )
    if rolled_back:
        # After the barrier every worker sees the chief's last checkpoint, for which the chief has waited.
        barrier(context.strategy)
        loaded = load_newest(_checkpoints(worker), telemetry.notice)
        if loaded is not None and is_mostly_skipped(loaded.state.skipped_steps, loaded.state.step):
            # It has hardly trained under the policy that skipped: begin again under the safer one.
            loaded = None
            checkpointer.begin_again()
    else:
        _check_resume(worker, context, loaded)
    return checkpointer, checkpointer.restore(loaded) if loaded is not None else None


def _check_resume(worker: Worker, context: RunContext, loaded: LoadedCheckpoint | None) -> None:
    """Report the step that training resumes from, if there is a checkpoint. Raise ResumeRefused."""
    if loaded is None:
        if context.training.resume == "Required":
            raise ResumeRefused(
                worker.folder, "no checkpoint", next_step="training.resume: Required needs one; Auto begins without."
            )
        return
    changed = loaded.state.fingerprint != context.datasets.training.dataset.fingerprint
    if changed and context.data.on_change == "Refuse":
        raise ResumeRefused(
            "spec.data.train",
            f"the records changed since the checkpoint of step {loaded.state.step}",
            next_step="Restore them, train in another folder, or set data.onChange: Accept.",
        )
    if loaded.state.order != order.VERSION:
        raise ResumeRefused(
            worker.folder,
            f"the checkpoint of step {loaded.state.step} is of another version, which orders the records differently",
            next_step="Finish the run with the image that began it, or begin at step 0: training.resume: Never.",
        )
    worker.telemetry.notice("Resumed", f"resuming from the checkpoint of step {loaded.state.step}")


def _checkpoints(worker: Worker) -> str:
    return storage.join(worker.folder, run_folder.CHECKPOINTS)


def _restore_scaler(scaler: LossScaler, state: CheckpointState, policy: str) -> None:
    """Restore the scaler from the checkpoint; under another policy, only its number of skipped steps."""
    if state.policy == policy:
        scale = scaler.state().scale if state.loss_scale is None else state.loss_scale
        scaler.restore(ScalerState(scale, state.good_steps, state.skipped_steps, state.skipped_in_a_row))
    else:
        scaler.restore(ScalerState(scaler.state().scale, 0, state.skipped_steps, 0))


@user_code()
def train(worker: Worker, environment: MutableMapping[str, str]) -> TrainingResult:
    """Run the job to its end on this worker. Raise Problem for every error that is reported to the user."""
    job, telemetry = worker.job, worker.telemetry
    kind = kind_of(job)
    if isinstance(kind, PredictionJob):
        # Its workers do not communicate.
        worker.preemption.unblock_for_children()
        return predict(worker, kind, environment)
    require_packages(job)
    if isinstance(kind, EnsembleJob):
        return average(worker, kind, environment)

    if job.workers > 1:
        wait_for_peers(
            worker.identity,
            now=telemetry.now,
            wait=worker.preemption.wait,
            notice=telemetry.notice,
            # A script's own strategy may open the port late, or never.
            until_reached=job.strategy == "None",
        )

    # Devices must be set before any other use of TensorFlow, policy and seeds before any other use of Keras.
    strategy = make_strategy(job, worker.identity, environment)
    worker.preemption.unblock_for_children()
    keras = load(job.keras)
    if source := environment.get(SOURCE_FOLDER):
        sys.path.insert(0, source)
    if isinstance(kind, ScriptJob):
        keras.set_policy(job.precision.policy)
        return train_script(claim_folder(worker), kind.script, strategy, keras, environment)
    return _train_model(worker, kind, strategy, keras, environment)


def _train_model(
    worker: Worker, kind: TrainingJob, strategy: Any, keras: Keras, environment: Mapping[str, str]
) -> TrainingResult:
    """Train a function's or an application's model to the last step, in as many sessions as that takes."""
    job, telemetry = kind.job, worker.telemetry
    keras.set_seed(kind.training.seed)

    # Data
    share = Share(worker.identity.index, job.workers)
    datasets = open_splits(worker, kind.data, share)
    examples = kind.global_batch_size * kind.training.gradient_accumulation_steps
    batching = Batching(datasets.training.count, examples, kind.data.remainder)
    if batching.steps_per_pass == 0:
        raise InvalidData(
            "spec.training.batchSize",
            f"{batching.examples_per_step} examples a step, {datasets.training.count} in the training data: zero steps",
            next_step="Lower the batch size, or set data.remainder: PadAndMask.",
        )
    versions = {"tensorflow": tf.__version__, "keras": keras.version}
    provenance = origin(job, environment.get(SOURCE_FOLDER), versions=versions)
    context = RunContext(kind, strategy, keras, datasets, share, batching, provenance, telemetry.notice)

    # Precision: from an earlier attempt's checkpoint, from timed trials, or from the job.
    available = supported_policies(job, native_bfloat16=native_bfloat16())
    loaded = None if kind.training.resume == "Never" else load_newest(_checkpoints(worker), telemetry.notice)
    precision_state = precision_from_checkpoint(job, loaded.state if loaded else None, available=available)
    if precision_state is None and job.precision.policy == "Measure":
        precision_state = measure_policies(context, available, telemetry)
    precision_state = precision_state or PrecisionState(
        requested_policy=job.precision.policy, policy=job.precision.policy
    )
    built, precision_state = _build(context, precision_state)
    hooks = make_hooks(worker, built)
    # The claim comes last, so that a refused job can be fixed and started again in the same folder.
    worker = claim_folder(worker)

    # Training; after infinite or NaN values it resumes from the last checkpoint with a newly built model.
    rollback, spent_seconds = None, 0.0
    while True:
        checkpointer, state = _restore_model(worker, built, hooks, loaded, rolled_back=rollback is not None)
        # Its arrays are as large as the model and its optimizer.
        loaded = None
        session = Session(worker, built, hooks, checkpointer, state, precision_state, rollback, spent_seconds)
        ended = run_session(session, available)
        if isinstance(ended, TrainingResult):
            return ended
        # The next model needs the device's memory.
        del built, hooks, checkpointer, state, session
        precision_state, rollback, spent_seconds = ended.precision_state, ended, ended.seconds
        built, precision_state = _build(context, precision_state)
        hooks = make_hooks(worker, built)


def _build(context: RunContext, precision_state: PrecisionState) -> tuple[BuildResult, PrecisionState]:
    """Build under this precision state; return the result, and the state with the policy that it was built under."""
    # With Fail a step that is not finite must not change the weights before it ends the run.
    checked = precision_state.checked or context.training.on_non_finite == "Fail"
    built = assemble(context, precision_state.policy, checked=checked)
    return built, replace(precision_state, policy=built.job.precision.policy)

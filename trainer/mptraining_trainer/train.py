"""One worker's run from job file to model, in labelled sections; read this to follow a job.

The decisions stand elsewhere: what runs where in `runtime`, which examples in `batching` and `input`, what is trained
in `program`, a step in `loop`, how many at once in `pace`, what happens between them in `course`. Here they only meet.
"""

from __future__ import annotations

import math
import sys
from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any

import tensorflow as tf

from mptraining_api import events, run_folder
from mptraining_api.launch import SOURCE_FOLDER
from mptraining_api.problems import InvalidData, ResumeRefused
from mptraining_api.resolved import ResolvedJob, ResolvedTraining
from mptraining_records import storage
from mptraining_records.order import Order, Position
from mptraining_trainer import input, preflight, program
from mptraining_trainer.agreement import require_agreement
from mptraining_trainer.batching import Batching, Share
from mptraining_trainer.checkpoint import Checkpointer, CheckpointState, Contents
from mptraining_trainer.claim import claim_folder
from mptraining_trainer.course import Course
from mptraining_trainer.first_look import gather
from mptraining_trainer.hooks import hooks_of
from mptraining_trainer.input import Split
from mptraining_trainer.keras_generation import load
from mptraining_trainer.loop import Loop, feed
from mptraining_trainer.optimizer import scale_learning_rate
from mptraining_trainer.pace import Boundaries
from mptraining_trainer.precision import LossScaler, ScalerState
from mptraining_trainer.preprocess import Preprocess
from mptraining_trainer.profiling import pauses
from mptraining_trainer.publish import publish
from mptraining_trainer.rendezvous import wait_for_peers
from mptraining_trainer.runtime import ground, make_strategy
from mptraining_trainer.script_run import train_script
from mptraining_trainer.skipped import SkippedRecords
from mptraining_trainer.splits import open_splits
from mptraining_trainer.worker import Trained, Worker
from mptraining_trainer.xla import compiles


def train(  # noqa: PLR0912, PLR0915 - sections to be read from top to bottom
    worker: Worker, environment: MutableMapping[str, str]
) -> Trained:
    """Trains the job to its end on this worker. Raises Problem for everything a user is told about."""
    job, telemetry = worker.job, worker.telemetry

    if job.processes > 1:
        wait_for_peers(worker.seat, now=telemetry.now, wait=worker.preemption.wait, notice=telemetry.notice)

    # Devices before anything else of TensorFlow, then numbers and seeds before anything of Keras.
    strategy = make_strategy(job, worker.seat, environment)
    keras = load(job.keras)
    keras.set_policy(job.precision.policy)
    if source := environment.get(SOURCE_FOLDER):
        sys.path.insert(0, source)
    if job.program.script is not None:
        return train_script(claim_folder(worker), strategy, keras, environment)
    assert job.data is not None
    assert job.training is not None
    assert job.global_batch_size is not None
    keras.set_seed(job.training.seed)

    # Data
    share = Share(worker.seat.index, job.processes)
    opened = open_splits(worker, share)
    data, validation, preprocess = opened.training, opened.validation, opened.preprocess
    accumulation = job.training.gradient_accumulation_steps
    batching = Batching(data.count, job.global_batch_size * accumulation, job.data.remainder)
    if batching.steps_per_pass == 0:
        raise InvalidData(
            "spec.training.batchSize",
            f"{batching.examples_per_step} examples a step and {data.count} in the training data: zero steps",
            next_step="Lower the batch size, or set data.remainder: PadAndMask.",
        )
    masked = job.data.remainder == "PadAndMask" or job.data.bad_records == "Skip"

    # Model
    example = preprocess.example_after(data.columns.example_spec())
    with strategy.scope():
        built = program.build(job, keras, example, telemetry.notice)
        optimizer = scale_learning_rate(keras, built.optimizer, job.learning_rate)
        scaler = None
        if job.precision.policy == "mixed_float16":
            scaler = LossScaler(initial=job.precision.loss_scale, dynamic=job.precision.loss_scale_mode == "Dynamic")
        loop = Loop(
            keras=keras,
            strategy=strategy,
            model=built.model,
            loss=built.loss,
            optimizer=optimizer,
            metrics=built.metrics,
            examples_per_step=batching.examples_per_step,
            masked=masked,
            accumulation=accumulation,
            scaler=scaler,
            jit=compiles(job, keras, built.model, telemetry.notice),
            workers=job.processes,
            timed=data.cached is None,
        )
        # Made here if it is not there yet, so that every replica has one.
        keras.random_states(built.model)
        if job.replicas > 1:
            keras.fold_replica_into_seeds(built.model)
    if preprocess.per_example is None and built.preprocess is not None:
        per_batch = job.program.application is not None
        preprocess = Preprocess(per_batch=built.preprocess) if per_batch else Preprocess(built.preprocess)

    # What cannot work is refused before the first step.
    order = Order(
        count=data.count,
        seed=job.training.seed,
        buffer_size=max(1, job.data.shuffle_buffer_size),
        shuffle=job.data.shuffle_buffer_size > 0,
    )
    replica_batch = batching.examples_per_step // job.replicas

    def pipeline(position: Position, steps: int) -> Any:
        # A pass that was begun with one seed goes on with it.
        return data.training(
            order=replace(order, seed=position.seed),
            batching=batching,
            position=position,
            share=share,
            batch=replica_batch,
            masked=masked,
            preprocess=preprocess,
            steps=steps,
        )

    first = Position(seed=job.training.seed, epoch=0, examples=0, fingerprint=data.dataset.fingerprint)
    with input.explaining(data):
        first_examples = _look(pipeline(first, 1))
    hooks = hooks_of(worker, replace(built, optimizer=optimizer), keras, strategy, validated=validation is not None)
    for finding in preflight.warnings(gather(built.model, built.loss, first_examples, keras, job)):
        telemetry.notice(finding.topic, finding.message, level="Warning")
    # Claimed only now, so that a job that was refused may be mended and started again in the same folder.
    worker = claim_folder(worker)

    # Where an earlier attempt left off
    checkpointer = Checkpointer(
        storage.join(worker.folder, run_folder.CHECKPOINTS),
        Contents(keras, built.model, optimizer, loop.metrics, sums=loop.sums, held=hooks.weights),
        max_to_keep=job.checkpoint.max_to_keep,
        chief=worker.seat.is_chief,
        telemetry=telemetry,
        fence=worker.fence,
        strategy=strategy,
    )
    state = _resume(worker, checkpointer, data.dataset.fingerprint)
    step, position = 0, first
    if state is not None:
        step = state.step
        position = replace(first, seed=state.seed, epoch=state.epoch, examples=state.examples)
        if scaler is not None and state.loss_scale is not None:
            scaler.restore(ScalerState(state.loss_scale, state.good_steps, state.skipped_steps, state.skipped_in_a_row))
        loop.restored()
    boundaries = _boundaries(job, job.training, batching, step, position, with_validation=validation is not None)

    if job.processes > 1:
        require_agreement(
            strategy,
            data=f"{data.dataset.fingerprint} {validation.dataset.fingerprint if validation else None}",
            checkpoint=f"{step} {position}",
            folder=worker.folder,
        )

    telemetry.say(
        events.Started,
        **ground(job, keras, strategy),
        global_batch_size=job.global_batch_size,
        total_steps=boundaries.total_steps,
        steps_per_epoch=boundaries.steps_per_epoch,
        first_step=step,
        steps_per_execution=job.training.steps_per_execution,
        train_examples=data.count,
        validation_examples=validation.count if validation else None,
        parameters=int(sum(math.prod(variable.shape) for variable in built.model.trainable_variables)),
        features=data.columns.describe(),
        cache=opened.meter.cache,
        first_record_seconds=opened.meter.first_record_seconds,
    )

    # Training
    hooks.begin(boundaries, state, checkpointer.held, fence=worker.fence)
    skipped = SkippedRecords(worker, [split.reader for split in (data, validation) if split is not None])
    course = Course(
        worker, loop, scaler, checkpointer, skipped, batching, boundaries, job.training, opened.meter, hooks
    )
    if state is not None:
        course.resume(state)
    if validation is not None:
        course.validate_on(_validation_iterator(strategy, validation, preprocess, job, share))
    iterator = feed(strategy, lambda: pipeline(position, max(0, boundaries.total_steps - step)))
    with skipped.published(), input.explaining(data, validation):
        metrics = course.run(iterator, step, position)
    checkpointer.wait()

    # The model, for people. Reading variables that are kept per replica takes every worker.
    chosen = hooks.exported(course.last_step, metrics, built.model.get_weights(), telemetry.notice)
    exported = publish(worker, built, keras, example, *chosen) if worker.seat.is_chief else None
    return Trained(
        step=course.last_step,
        metrics=metrics,
        model=exported,
        step_seconds=course.step_seconds,
        training_seconds=course.training_seconds,
        skipped_steps=course.skipped_steps,
        input_bound_percent=course.input_bound_percent,
        input=opened.meter,
        skipped_records=len(skipped.all),
        message=hooks.ended(first_step=step, last_step=course.last_step),
        best=hooks.chosen,
    )


def _look(dataset: Any) -> tuple[Any, Any]:
    """Inputs and labels of the first few examples, as NumPy arrays."""
    inputs, labels, *_ = next(iter(dataset))
    few: tuple[Any, Any] = tf.nest.map_structure(lambda tensor: tensor[:8].numpy(), (inputs, labels))
    return few


def _boundaries(
    job: ResolvedJob,
    training: ResolvedTraining,
    batching: Batching,
    step: int,
    position: Position,
    *,
    with_validation: bool,
) -> Boundaries:
    """Where training that goes on at this step and position pauses and ends.

    Epochs are passes over the data unless the job counts them in steps. After a resume with another batch size the
    passes before took another number of steps than they would today.
    """
    per_epoch = training.steps_per_epoch or batching.steps_per_pass
    offset = 0 if training.steps_per_epoch else step - batching.steps_before(position)
    total = training.total_steps or (training.epochs or 1) * per_epoch + offset
    return Boundaries(
        total_steps=total,
        steps_per_epoch=per_epoch,
        validation_every=(training.validation_every_steps or per_epoch) if with_validation else None,
        checkpoint_every=job.checkpoint.every_steps or per_epoch,
        offset=offset,
        pauses=pauses(job.profile),
    )


def _validation_iterator(
    strategy: Any, validation: Split, preprocess: Preprocess, job: ResolvedJob, share: Share
) -> tuple[Any, int]:
    """An endless iterator over masked batches, and the steps that count every example once."""
    assert job.global_batch_size is not None
    size = job.global_batch_size
    iterator = feed(
        strategy,
        lambda: validation.validation(
            examples_per_step=size, share=share, batch=size // job.replicas, preprocess=preprocess
        ),
    )
    return iterator, -(-validation.count // size)


def _resume(worker: Worker, checkpointer: Checkpointer, fingerprint: str) -> CheckpointState | None:
    """The state of the newest checkpoint, its variables restored; None to begin anew. Raises ResumeRefused."""
    job = worker.job
    assert job.training is not None
    assert job.data is not None
    state = None if job.training.resume == "Never" else checkpointer.restore()
    if state is None:
        if job.training.resume == "Required":
            raise ResumeRefused(
                worker.folder,
                "no checkpoint",
                next_step="training.resume: Required needs one; Auto begins without.",
            )
        return None
    if state.fingerprint != fingerprint and job.data.on_change == "Refuse":
        raise ResumeRefused(
            "spec.data.train",
            f"the records changed since the checkpoint of step {state.step}",
            next_step="Restore them, train in another folder, or set data.onChange: Accept.",
        )
    worker.telemetry.notice("Resumed", f"going on from the checkpoint of step {state.step}")
    return state

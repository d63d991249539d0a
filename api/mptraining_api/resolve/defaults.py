"""Defaults of the data, training and runPolicy sections."""

from __future__ import annotations

from mptraining_api.model import Model
from mptraining_api.resolve.devices import Devices
from mptraining_api.resolve.precision import deterministic
from mptraining_api.resolved_job import Choice, ResolvedData, ResolvedTraining
from mptraining_api.rules.job import PENDING_TIMEOUT
from mptraining_api.spec import Data, JobSpec, KerasObject, Program, RunPolicy, Shuffle, Training

# An application is trained as a classifier over integer labels whose outputs are logits. 1e-3 is the default of Adam
# (Kingma & Ba 2015, arXiv:1412.6980) and of Keras.
ADAM = KerasObject(class_name="Adam", config={"learning_rate": 1e-3})
LOSS = KerasObject(class_name="SparseCategoricalCrossentropy", config={"from_logits": True})
METRICS = (KerasObject(class_name="SparseCategoricalAccuracy", config={"name": "accuracy"}),)

# The checkpoints that are kept.
MAX_TO_KEEP = 3


def resolve_training(spec: JobSpec, devices: Devices) -> tuple[ResolvedTraining, tuple[Choice, ...]]:
    """Return the training section with its defaults; an absent section is an empty one.

    None for optimizer, loss or metrics means that a function program keeps those it compiled with.
    """
    written = spec.training or Training()
    application = spec.program.application is not None
    choices: list[Choice] = []

    def decided(field: str, value: str, because: str) -> None:
        choices.append(Choice(field=f"spec.training.{field}", value=value, because=because))

    epochs = written.epochs
    if epochs is None and written.total_steps is None:
        epochs = 1
        decided("epochs", "1", "neither epochs nor totalSteps is given: one pass shows that the job works")
    if application:
        because = "a classifier over integer labels"
        if written.optimizer is None:
            decided("optimizer", "Adam, learning rate 0.001", "Keras' default for a model by name")
        if written.loss is None:
            decided("loss", f"{LOSS.class_name}(from_logits=True)", because)
        if written.metrics is None:
            decided("metrics", METRICS[0].class_name, because)
    metrics = METRICS if application else None
    repeatable, repeatable_choice = deterministic(spec, devices)
    choices.append(repeatable_choice)
    resolved = ResolvedTraining(
        epochs=epochs,
        total_steps=written.total_steps,
        steps_per_epoch=written.steps_per_epoch,
        validation_every_steps=written.validation_every_steps,
        validation_freq=written.validation_freq or 1,
        initial_epoch=written.initial_epoch or 0,
        class_weight=written.class_weight,
        optimizer=written.optimizer or (ADAM if application else None),
        loss=written.loss or (LOSS if application else None),
        metrics=tuple(written.metrics) if written.metrics is not None else metrics,
        gradient_accumulation_steps=written.gradient_accumulation_steps or 1,
        steps_per_execution=written.steps_per_execution,
        on_non_finite=written.on_non_finite or "Recover",
        deterministic=repeatable,
        seed=written.seed or 0,
        resume=written.resume or "Auto",
    )
    return resolved, tuple(choices)


def resolve_data(data: Data, program: Program) -> tuple[ResolvedData, tuple[Choice, ...]]:
    # `auto` of a prediction and an ensemble is what their models were trained with.
    known = program.application is not None or program.uses_trained_models
    preprocess = data.preprocess or ("auto" if known else "none")
    choices: tuple[Choice, ...] = ()
    if data.preprocess is None and program.application:
        because = f"{program.application.name}'s own"
        choices = (Choice(field="spec.data.preprocess", value="auto", because=because),)
    bad_records = data.bad_records
    shuffle = data.shuffle or Shuffle()
    resolved = ResolvedData(
        train=tuple(data.train or ()),
        predict=tuple(data.predict or ()),
        validation=tuple(data.validation or ()),
        features=tuple(data.features) if data.features is not None else None,
        label=data.label,
        labels=None if data.labels is None else tuple(data.labels),
        sample_weight=data.sample_weight,
        preprocess=preprocess,
        shuffle=shuffle.mode or ("None" if shuffle.buffer_size == 0 else "Windowed"),
        shuffle_buffer_size=shuffle.buffer_size or None,
        cache=data.cache or "Auto",
        bad_records=(bad_records.action if bad_records else None) or "Fail",
        max_skipped=(bad_records.max_skipped if bad_records else None) or 0,
        remainder=data.remainder or "Drop",
        on_change=data.on_change or "Refuse",
    )
    return resolved, choices


# As for batch/v1 Jobs and similar operators, program errors are retried a few times; a job on Spot machines may be
# preempted many times.
BACKOFF_LIMIT = 3
INFRASTRUCTURE_RETRIES = 20
# A resize costs the time of a restart, a minute or two: at this interval a few percent of the training at most.
RESIZE_SECONDS = 600


class ResolvedRunPolicy(Model):
    """Limits in seconds and numbers of retries; None means no limit."""

    backoff_limit: int = BACKOFF_LIMIT
    infrastructure_retries: int = INFRASTRUCTURE_RETRIES
    active_deadline_seconds: int | None = None
    pending_timeout_seconds: int = PENDING_TIMEOUT
    progress_deadline_seconds: int | None = None
    resize_seconds: int = RESIZE_SECONDS
    ttl_seconds_after_finished: int | None = None


def resolve_run_policy(written: RunPolicy | None) -> ResolvedRunPolicy:
    given = {} if written is None else written.model_dump(exclude={"suspend"}, exclude_none=True)
    return ResolvedRunPolicy(**given)

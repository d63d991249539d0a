"""The model with its loop and input, built under one precision policy; built anew where another one is tried or taken.

Whatever was built before, the same job under the same policy begins with the same weights, seeds and order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from mptraining_api.resolved import ResolvedData, ResolvedJob, ResolvedTraining
from mptraining_records.order import Order, Position
from mptraining_trainer import input, preflight, program
from mptraining_trainer.batching import Batching, Share
from mptraining_trainer.example_spec import ExampleSpec
from mptraining_trainer.first_look import gather
from mptraining_trainer.input import Split
from mptraining_trainer.keras_generation import Keras
from mptraining_trainer.loop import Loop, feed
from mptraining_trainer.optimizer import scale_learning_rate
from mptraining_trainer.origin import Origin
from mptraining_trainer.precision import LossScaler, scaler_for
from mptraining_trainer.preflight import Finding
from mptraining_trainer.preprocess import Preprocess
from mptraining_trainer.program import Program
from mptraining_trainer.recovery import job_under
from mptraining_trainer.splits import Opened
from mptraining_trainer.xla import compiles, leave_out


@dataclass(frozen=True)
class Ground:
    """What holds for the whole run, whatever the policy: devices, data, and how it is cut into steps."""

    job: ResolvedJob
    strategy: Any
    keras: Keras
    opened: Opened
    share: Share
    batching: Batching
    origin: Origin
    notice: Callable[..., None]
    # Numbers of records that are left out, see `training.exclusion`.
    excluded: frozenset[int] = frozenset()

    @property
    def data(self) -> ResolvedData:
        assert self.job.data is not None
        return self.job.data

    @property
    def training(self) -> ResolvedTraining:
        assert self.job.training is not None
        return self.job.training

    @property
    def masked(self) -> bool:
        return self.data.remainder == "PadAndMask" or self.data.bad_records == "Skip" or bool(self.excluded)

    @property
    def example(self) -> ExampleSpec:
        """One example after the job's own preprocessing."""
        return self.opened.preprocess.example_after(self.opened.training.columns.example_spec())

    def order(self, seed: int) -> Order:
        """The training records' order; a pass that was begun with one seed goes on with it."""
        size = self.data.shuffle_buffer_size
        return Order(count=self.opened.training.count, seed=seed, buffer_size=max(1, size), shuffle=size > 0)

    @property
    def first(self) -> Position:
        """Where the data begins."""
        fingerprint = self.opened.training.dataset.fingerprint
        return Position(seed=self.training.seed, epoch=0, examples=0, fingerprint=fingerprint)


@dataclass(frozen=True)
class Assembled:
    """`job` is the job under the policy that this was built for; `findings` are worth a warning."""

    ground: Ground
    job: ResolvedJob
    program: Program
    optimizer: Any
    scaler: LossScaler | None
    loop: Loop
    preprocess: Preprocess
    findings: tuple[Finding, ...]

    def feed(self, position: Position, steps: int) -> Any:
        """An iterator for the loop over `steps` steps from there."""
        return feed(self.ground.strategy, lambda: _pipeline(self.ground, self.preprocess, position, steps))


def assemble(ground: Ground, policy: str, *, checked: bool = False) -> Assembled:
    """Builds everything. Every worker must call it. Raises Problem for what can never train."""
    job, keras = job_under(ground.job, policy), ground.keras
    keras.forget()
    keras.set_policy(policy)
    keras.set_seed(ground.training.seed)
    data = ground.opened.training
    with ground.strategy.scope():
        built = program.build(job, keras, ground.example, ground.notice)
        optimizer = scale_learning_rate(keras, built.optimizer, job.learning_rate)
        # Made here if it is not there yet, so that every replica has one.
        keras.random_states(built.model)
        scaler = scaler_for(job.precision, checked=checked)
        compiled = compiles(job, keras, built.model, ground.notice)
        loop = Loop(
            keras=keras,
            strategy=ground.strategy,
            model=built.model,
            loss=built.loss,
            optimizer=optimizer,
            metrics=built.metrics,
            examples_per_step=ground.batching.examples_per_step,
            masked=ground.masked,
            accumulation=ground.training.gradient_accumulation_steps,
            scaler=scaler,
            jit=compiled,
            workers=job.processes,
            timed=data.cached is None,
        )
        if job.replicas > 1:
            keras.fold_replica_into_seeds(built.model)
    preprocess = ground.opened.preprocess
    if preprocess.per_example is None and built.preprocess is not None:
        per_batch = job.program.application is not None
        preprocess = Preprocess(per_batch=built.preprocess) if per_batch else Preprocess(built.preprocess)
    # What cannot work is refused before the first step.
    with input.explaining(data):
        examples = _look(_pipeline(ground, preprocess, ground.first, 1))
    # A TPU takes the whole step to XLA by itself, and says at the first one what it cannot take.
    tried = compiled and job.accelerator.kind != "tpu"
    if tried and leave_out(job, loop.not_compilable(*examples), ground.notice):
        loop.interpret()
    findings = tuple(preflight.warnings(gather(built.model, built.loss, examples, keras, job)))
    return Assembled(ground, job, built, optimizer, scaler, loop, preprocess, findings)


def _pipeline(ground: Ground, preprocess: Preprocess, position: Position, steps: int) -> Any:
    data: Split = ground.opened.training
    return data.training(
        order=ground.order(position.seed),
        batching=ground.batching,
        position=position,
        share=ground.share,
        batch=ground.batching.examples_per_step // ground.job.replicas,
        masked=ground.masked,
        excluded=ground.excluded,
        preprocess=preprocess,
        steps=steps,
    )


def _look(dataset: Any) -> tuple[Any, Any]:
    """Inputs and labels of the first few examples, as NumPy arrays."""
    inputs, labels, *_ = next(iter(dataset))
    few: tuple[Any, Any] = tf.nest.map_structure(lambda tensor: tensor[:8].numpy(), (inputs, labels))
    return few

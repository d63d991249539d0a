"""Build of model, loop and input pipeline under one precision policy, again for each policy that is tried or chosen.

The same job under the same policy begins with the same weights, seeds and order, whatever was built before.
`assemble` builds a BuildResult for a RunContext; `step.xla` decides whether XLA compiles the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from mptraining_api.problems import InvalidProgram, InvalidSpec, Problem
from mptraining_api.resolved_job import ResolvedData, ResolvedJob, ResolvedTraining
from mptraining_records.reading.order import Order, Position, training_order
from mptraining_trainer.checkpoints.provenance import Origin
from mptraining_trainer.data import pipeline
from mptraining_trainer.data.batch_spec import example_specs
from mptraining_trainer.data.batching import Batching, Share
from mptraining_trainer.data.dataset import Datasets
from mptraining_trainer.data.padding import padding_values
from mptraining_trainer.data.pipeline import Rows, Split
from mptraining_trainer.data.preprocess import Preprocess
from mptraining_trainer.data.schema import ExampleSpec
from mptraining_trainer.devices.aligned_sizes import align
from mptraining_trainer.devices.replica_variables import ReplicaValues
from mptraining_trainer.host import native_bfloat16
from mptraining_trainer.job.kinds import TrainingJob
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.model import preflight, program
from mptraining_trainer.model.compile import scale_learning_rate
from mptraining_trainer.model.compiled import shape_mismatch
from mptraining_trainer.model.first_look import EXAMPLES_CHECKED, EXAMPLES_READ, as_tensor, first_examples, gather_facts
from mptraining_trainer.model.preflight import Finding
from mptraining_trainer.model.program import Program
from mptraining_trainer.model.rounded_ids import rounded_ids
from mptraining_trainer.numerics.loss_scaling import LossScaler, make_scaler
from mptraining_trainer.numerics.recovery import job_with_policy, policy_without_scaling
from mptraining_trainer.report.error_text import describe_error, next_step_of, problem_in
from mptraining_trainer.session.variable_sizes import allow_xla
from mptraining_trainer.step.separable_loss import needs_sums
from mptraining_trainer.step.train_loop import Loop, StepPlan, make_iterator
from mptraining_trainer.step.xla import can_compile, must_disable_xla, report_replica_sums


@dataclass(frozen=True)
class RunContext:
    """Context of the whole run under any policy: devices, data, and its division into steps."""

    kind: TrainingJob
    strategy: Any
    keras: Keras
    datasets: Datasets
    share: Share
    batching: Batching
    origin: Origin
    notice: Callable[..., None]

    @property
    def job(self) -> ResolvedJob:
        return self.kind.job

    @property
    def data(self) -> ResolvedData:
        return self.kind.data

    @property
    def training(self) -> ResolvedTraining:
        return self.kind.training

    @property
    def partial(self) -> bool:
        """Whether a training batch may have fewer rows than others."""
        return self.data.remainder == "PadAndMask" or self.data.bad_records == "Skip"

    @property
    def rows(self) -> Rows:
        """The rows of training batches: only a batch that is not divided, and of no fixed size, may be smaller."""
        if not self.partial:
            return "Full"
        divided = self.training.gradient_accumulation_steps > 1
        return "Masked" if divided or self.evaluation_rows == "Masked" else "Real"

    @property
    def evaluation_rows(self) -> Rows:
        return "Masked" if self.job.replicas > 1 or self.job.accelerator.kind == "tpu" else "Real"

    @property
    def example(self) -> ExampleSpec:
        """The spec of one example after the job's preprocessing."""
        columns = self.datasets.training.columns
        return self.datasets.preprocess.example_after(columns.example_spec())

    def order(self, position: Position) -> Order:
        """Return the order of the training records; a pass that began with one seed continues with it."""
        dataset, buffer_size = self.datasets.training.dataset, self.data.shuffle_buffer_size
        return training_order(
            dataset.count,
            dataset.mean_record_bytes,
            seed=position.seed,
            mixed=position.mixed,
            # A job.json of an older version has only a size, 0 for the stored order.
            shuffle="None" if buffer_size == 0 else self.data.shuffle,
            buffer_size=buffer_size,
        )

    @property
    def first(self) -> Position:
        """The position of the first example."""
        split = self.datasets.training
        return Position(
            seed=self.training.seed, epoch=0, examples=0, fingerprint=split.dataset.fingerprint, mixed=split.mixed
        )


@dataclass(frozen=True)
class BuildResult:
    """Model, loop and input under one policy. `job` has that policy; each of `findings` is reported as a warning."""

    context: RunContext
    job: ResolvedJob
    program: Program
    optimizer: Any
    scaler: LossScaler | None
    loop: Loop
    preprocess: Preprocess
    findings: tuple[Finding, ...]
    # The model's inputs of the first examples, with which an export is compared.
    inputs: Any

    def make_iterator(self, position: Position, steps: int) -> Any:
        """Return an iterator for the loop over `steps` steps from `position`."""
        return make_iterator(self.context.strategy, lambda: _pipeline(self.context, self.preprocess, position, steps))


def assemble(context: RunContext, policy: str, *, checked: bool = False) -> BuildResult:
    """Build model, loop and input. Every worker must call it. Raise Problem for a program that cannot train."""
    job, keras = job_with_policy(context.job, policy), context.keras
    keras.clear_session()
    keras.set_policy(policy)
    keras.set_seed(context.training.seed)
    data = context.datasets.training
    compilable = allow_xla(data.columns.columns, job, context.training.gradient_accumulation_steps, context.notice)
    with context.strategy.scope():
        built = program.build(job, keras, context.example, context.notice)
        _check_batch_size(context, built.model)
        # This call creates Keras 3's global generator under the strategy if it does not exist, so every replica has it.
        keras.untracked_states(built.model)
        compiled = built.compiled
        has_train_step = "train_step" in compiled.own_steps
    if has_train_step and policy == "mixed_float16":
        safer = _policy_without_scaling(context, type(compiled.model).__name__)
        del built, compiled
        return assemble(context, safer, checked=checked)
    with context.strategy.scope():
        # The user's own train_step cannot be scaled or skipped from outside.
        scaler = None if has_train_step else make_scaler(job.precision, checked=checked)
        with _program_errors(job, built, context.example), suppress(Exception) if has_train_step else nullcontext():
            # Keras may be unable to build a model with its own steps; their variables are created when they are traced.
            seen = program.example_of(built, context.example)
            compiled.build(example_specs(seen, keras.fixed_batch_size(built.model) or 2))
        jit = not has_train_step and compilable and can_compile(job, keras, built.model, context.notice)
        plan = StepPlan(
            context.batching.examples_per_step,
            partial=context.partial,
            accumulation=context.training.gradient_accumulation_steps,
            jit=jit,
            workers=job.workers,
            measures_waiting=data.cached is None,
        )
        loop = Loop(context.strategy, compiled, built.optimizer, plan, scaler=scaler, align=_align(context))
        scale_learning_rate(keras, built.optimizer, job.learning_rate)
        if job.replicas > 1:
            keras.fold_replica_into_seeds()
    preprocess = context.datasets.preprocess
    if preprocess.per_example is None and built.preprocess is not None:
        preprocess = Preprocess(per_batch=built.preprocess) if job.program.application else Preprocess(built.preprocess)
    # Invalid data is refused before the first step.
    with pipeline.raise_reading_problems(data):
        count = keras.fixed_batch_size(built.model) or EXAMPLES_READ
        steps = math.ceil(count / context.batching.examples_per_step)
        examples = first_examples(_pipeline(context, preprocess, context.first, steps), count)
    # On a TPU the whole step always goes to XLA, which reports unsupported operations at the first step.
    tensors = tf.nest.map_structure(as_tensor, examples)
    sums, findings = _trace(context, job, built, loop, examples)
    eager = job.accelerator.kind != "tpu"
    if eager and not sums:
        loop.disable_loss_sums()
    if jit and sums and job.replicas > 1:
        report_replica_sums(job, context.notice)
        loop.disable_xla()
    elif jit and eager:
        with _program_errors(job, built, context.example):
            if must_disable_xla(job, loop.xla_error(tensors), context.notice):
                loop.disable_xla()
    inputs = compiled.arrange_inputs(tensors[0])
    with context.strategy.scope():
        if rounded := rounded_ids(keras, compiled, examples[0]):
            context.notice("TokenIdsRounded", rounded, level="Warning")
    return BuildResult(context, job, built, built.optimizer, scaler, loop, preprocess, findings, inputs)


def _trace(
    context: RunContext, job: ResolvedJob, built: Program, loop: Loop, examples: tuple[Any, Any, Any]
) -> tuple[bool, tuple[Finding, ...]]:
    """Trace the step; return whether the loss needs sums over the replicas, and the findings of `preflight`.

    The model's variables are unchanged afterwards, moving statistics included. Raise InvalidProgram for a program that
    cannot train.
    """
    keras, compiled = context.keras, built.compiled
    has_train_step = "train_step" in compiled.own_steps
    if has_train_step and context.partial and job.replicas > 1:
        raise InvalidProgram(
            "train_step",
            f"an override of {type(compiled.model).__name__}, with padded or skipped rows on {job.replicas} replicas",
            expected="batches in which every row counts",
            next_step="Set data.remainder: Drop and badRecords.action: Fail, or train on one replica.",
        )
    tensors = tf.nest.map_structure(as_tensor, examples)
    with _program_errors(job, built, context.example), context.strategy.scope():
        loop.prepare(tensors)
        loop.evaluation.prepare(tensors)
    with ReplicaValues(context.strategy).preserved(keras.forward_pass_state(built.model)):
        # Labels that do not fit the loss are refused before the loss fails.
        checked = keras.fixed_batch_size(built.model) or EXAMPLES_CHECKED
        facts = gather_facts(compiled, tf.nest.map_structure(lambda array: array[:checked], examples), keras, job)
        findings = tuple(preflight.warnings(facts)) if facts else ()
        sums = False
        if loop.parts > 1 and job.accelerator.kind != "tpu":
            # The model's own step may call neither the compiled loss nor the model.
            with _ignoring_all_but_problems() if has_train_step else _program_errors(job, built, context.example):
                sums = needs_sums(context.strategy, compiled, examples, loop.parts, padded=context.partial)
    return sums, findings


def _policy_without_scaling(context: RunContext, name: str) -> str:
    """Return and report the policy in place of mixed_float16 for a `train_step` that gets no loss scaling."""
    policy = policy_without_scaling(context.job, native_bfloat16=native_bfloat16())
    text = f"{policy} instead of mixed_float16: {name} has its own train_step, whose loss is not scaled here"
    context.notice("LossNotScaled", text, level="Warning")
    return policy


def _pipeline(context: RunContext, preprocess: Preprocess, position: Position, steps: int) -> Any:
    data: Split = context.datasets.training
    return data.training(
        order=context.order(position),
        batching=context.batching,
        position=position,
        share=context.share,
        batch=context.batching.examples_per_step // context.job.replicas,
        rows=context.rows,
        preprocess=preprocess,
        steps=steps,
        add_class_weights=_class_weights(context),
    )


def _align(context: RunContext) -> Callable[[Any], Any] | None:
    """Return the function that gives the batches of several replicas the same variable sizes; None without any."""
    columns = context.datasets.training.columns
    if context.job.replicas == 1 or not any(
        column.is_variable and not column.is_fixed_when_padded for column in columns.columns
    ):
        return None
    spec = columns.example_spec()
    names_of_inputs, names_of_labels = [tensor.name for tensor in spec.inputs], [tensor.name for tensor in spec.labels]

    def aligned(batch: Any) -> Any:
        inputs, labels, *rest = batch
        padding = (
            padding_values(inputs, names_of_inputs, columns.columns),
            padding_values(labels, names_of_labels, columns.columns),
            *(tf.nest.map_structure(lambda leaf: 0, part) for part in rest),
        )
        return align(batch, padding)

    return aligned


def _class_weights(context: RunContext) -> Callable[..., Any] | None:
    weights = context.training.class_weight
    columns = context.datasets.training.columns
    variable = [column.name for column in columns.columns if column.name in columns.labels and column.is_variable]
    if weights and variable:
        # Keras takes a label with several values for a one-hot class, whose position decides the weight.
        raise InvalidSpec(
            "spec.training.classWeight",
            f"given, and the label {variable[0]!r} has a variable number of values",
            expected="a label with one class a record",
            next_step="Write a weight for each value into the records, and name it in data.sampleWeight.",
        )
    return context.keras.class_weights(weights) if weights else None


@contextmanager
def _ignoring_all_but_problems() -> Iterator[None]:
    try:
        yield
    except Problem as problem:
        if "no loss to compute" in str(problem):
            return
        raise
    except Exception:  # noqa: BLE001 - the user's own loss may raise any error
        return


@contextmanager
def _program_errors(job: ResolvedJob, built: Program, example: ExampleSpec) -> Iterator[None]:
    """Convert errors of Keras or of the program to InvalidProgram, with the program's file and line.

    An error of a model whose input has another shape than the records' only feature names both shapes.
    """
    try:
        yield
    except Problem:
        raise
    except Exception as error:
        if (problem := problem_in(error)) is not None:
            raise problem from None
        function = job.program.function
        text = describe_error(f"a training step of {function.entry_point}" if function else "", error)
        inputs = program.example_of(built, example).inputs
        raise (
            shape_mismatch(built.compiled, inputs, text)
            or InvalidProgram("spec.program", text, next_step=next_step_of(error))
        ) from error


def _check_batch_size(context: RunContext, model: Any) -> None:
    """Raise InvalidProgram if the model's Input fixes another batch size than that of the batches here."""
    rows, batch = context.keras.fixed_batch_size(model), context.batching.examples_per_step
    parts = context.job.replicas * context.training.gradient_accumulation_steps
    if rows is not None and (rows != batch or parts > 1):
        raise InvalidProgram(
            "spec.program",
            f"the model's Input fixes the batch size {rows}, and a batch here has {batch} examples in {parts} parts "
            "(replicas, accumulated batches)",
            expected=f"batches of {rows} examples on one replica",
            next_step=f"Set training.batchSize.global: {rows}, or give the Input no batch size.",
        )

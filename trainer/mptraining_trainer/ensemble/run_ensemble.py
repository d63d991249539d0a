"""An ensemble's run: load the members, average them in one model, evaluate it beside its best member, and export it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from mptraining_api import events
from mptraining_api.launch import SOURCE_FOLDER
from mptraining_api.problems import InvalidProgram, InvalidSpec, Preempted
from mptraining_api.resolve.batch_size import PREDICTION_BATCH_SIZE
from mptraining_trainer.checkpoints.claim import claim_folder
from mptraining_trainer.data import pipeline, schema
from mptraining_trainer.data.dataset import SkippedRecords, in_field, open_data
from mptraining_trainer.data.pipeline import Split
from mptraining_trainer.data.preprocess import Preprocess
from mptraining_trainer.data.schema import ExampleSpec
from mptraining_trainer.distribution.strategy import make_strategy, started_fields
from mptraining_trainer.ensemble.members import Member, require_agreement
from mptraining_trainer.ensemble.probabilities import Activation, on_probabilities
from mptraining_trainer.export import export, float32_model
from mptraining_trainer.keras_backend import Keras, load
from mptraining_trainer.model.compile import compiled_arguments
from mptraining_trainer.model.compiled import CompiledModel
from mptraining_trainer.model.program import Program, example_of
from mptraining_trainer.prediction import evaluator, trained_model
from mptraining_trainer.prediction.evaluator import Evaluator
from mptraining_trainer.prediction.location import locate
from mptraining_trainer.prediction.output_columns import ONLY, by_name
from mptraining_trainer.source.user_code import import_entry_point
from mptraining_trainer.training_result import TrainingResult
from mptraining_trainer.worker import Worker

_FIELD = "spec.program.ensemble"
# Metrics of the best member, beside those of the ensemble, which are named as in training.
BEST_MEMBER = "best_member_"


def average(worker: Worker, environment: MutableMapping[str, str]) -> TrainingResult:
    """Average the members, evaluate and export. Raise Problem for every error that is reported to the user."""
    job, telemetry = worker.job, worker.telemetry
    wanted, data = job.program.ensemble, job.data
    assert wanted is not None
    assert data is not None

    # Devices must be set before any other use of TensorFlow.
    strategy = make_strategy(job, worker.identity, environment)
    keras = load(job.keras)
    if source := environment.get(SOURCE_FOLDER):
        sys.path.insert(0, source)

    # Members
    scratch = Path(worker.exit_stack.enter_context(tempfile.TemporaryDirectory(prefix="mptraining-")))
    members = [
        _load_member(uri, f"{_FIELD}.members[{number}]", scratch / str(number))
        for number, uri in enumerate(wanted.members)
    ]
    require_agreement(members)
    best = members[0]
    weights = _normalized(wanted.weights, len(members))

    # Validation records
    data = trained_model.data_of(best.about, data)
    columns = None
    if data.features is not None:
        columns = schema.decide_columns(data, None, [], lambda text: telemetry.notice("FeaturesInferred", text))
    with in_field("spec.data.validation"):
        split = open_data(data.validation, data, training_columns=columns, notice=telemetry.notice, now=telemetry.now)
    worker.exit_stack.callback(split.reader.close)
    preprocess = trained_model.preprocess_of(best.about, data, keras)
    own = best.about.get("preprocess") == trained_model.OWN
    example = split.columns.example_spec() if own else preprocess.example_after(split.columns.example_spec())

    # The best member as it was trained, which names loss and metrics, and the ensemble
    program = evaluator.build_program(best.job, best.path, keras, example)
    assert program.compiled is not None
    seen = example_of(program, example)
    activations = [_activations(member) for member in members]
    ensemble = _build(members, weights, activations, keras)
    compiled = _compile(ensemble.model, program.compiled, activations[0], keras, seen)
    worker = claim_folder(worker)
    telemetry.emit(
        events.Started,
        **started_fields(job, keras, strategy),
        validation_examples=split.count,
        parameters=int(sum(np.prod(each.shape) for each in ensemble.model.trainable_weights)),
        features=split.columns.describe(),
        start_up_seconds=telemetry.process_seconds(),
    )
    began = telemetry.now()
    judges = [Evaluator(compiled, seen), Evaluator(program.compiled, seen)]
    skipped = SkippedRecords(worker, [split.reader])
    with skipped.publish_at_end(), pipeline.raise_reading_problems(split):
        found, of_best = _evaluate(worker, split, preprocess, judges)
    metrics = {f"val_{name}": value for name, value in found.items()}
    metrics |= {f"{BEST_MEMBER}val_{name}": value for name, value in of_best.items()}

    # Export
    rebuilt = Program(ensemble.model, compiled, None, None, (), ensemble.rebuild)
    snapshot = export.take_snapshot(ensemble.model, keras, scratch, policy="float32")
    model = export.publish(worker, rebuilt, keras, example, 0, metrics, snapshot, columns=split.columns)
    return TrainingResult(
        step=None,
        metrics=metrics,
        model=model,
        step_seconds=None,
        training_seconds=telemetry.now() - began,
        skipped_steps=0,
        skipped_records=len(skipped.records),
        message=f"{len(members)} models averaged; the best member is {best.uri}",
        policy="float32",
        input=split.meter,
    )


def _load_member(uri: str, field: str, scratch: Path) -> Member:
    location = locate(uri, field)
    job = location.job()
    if location.kind != "export" or job is None:
        raise InvalidSpec(field, f"{uri!r} is no run folder", expected="the folder of a run with job.json and model/")
    if not job.program.is_trained_here:
        raise InvalidSpec(
            field,
            f"{uri!r} is a run of {'a script' if job.program.script else 'an ensemble'}, whose loss is not known",
            expected="runs of an application or a function",
        )
    if any(each.get("ragged") for each in location.about.get("inputs") or ()):
        raise InvalidSpec(field, f"{uri!r} takes ragged inputs", expected="padded or fixed inputs")
    path = location.download(scratch)
    sys.path.insert(0, str(path / "source"))
    if function := job.program.function:
        # Its modules are exported with the ensemble.
        import_entry_point(function.entry_point, field)
    model = export.load(path)
    return Member(uri, location, job, path, model, _output_shapes(model, _inputs(location.about)))


def _inputs(about: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the inputs of the model that model.json describes, after preprocessing."""
    preprocess = str(about.get("preprocess") or "")
    # Preprocessing of keras.applications converts every image to float32.
    floats = bool(preprocess) and preprocess != trained_model.OWN and ":" not in preprocess
    return [{**each, "dtype": "float32"} if floats else dict(each) for each in about["inputs"]]


def _output_shapes(model: Any, inputs: Sequence[Any]) -> dict[str, tuple[int | None, ...]]:
    """Return the shapes of the outputs for a batch, without the batch."""
    specs = {
        each["name"]: tf.TensorSpec(
            [2, *(size if size is None else int(size) for size in each["shape"])], each["dtype"]
        )
        for each in inputs
    }
    batch: Any = specs if len(specs) > 1 else next(iter(specs.values()))
    if export.takes_list(model):
        batch = [specs[each["name"]] for each in inputs]

    def call(tensors: Any) -> Any:
        return model(tensors, training=False)

    traced = tf.function(call).get_concrete_function(batch)
    named = by_name(traced.structured_outputs, getattr(model, "output_names", None) or ())
    return {name: tuple(output.shape[1:]) for name, output in named.items()}


def _normalized(weights: Sequence[float] | None, members: int) -> list[float]:
    """Return weights with the sum 1."""
    given = list(weights) if weights is not None else [1.0] * members
    return [each / sum(given) for each in given]


def _activations(member: Member) -> dict[str, Activation]:
    """Return what makes probabilities of each output, by the loss that the member was trained with."""
    found: dict[str, Activation] = {}
    for name in member.outputs:
        key = "" if name == ONLY else name
        loss = member.losses.get(key)
        found[key] = loss.activation if loss is not None and loss.from_logits else None
    return found


def _build(
    members: Sequence[Member],
    weights: Sequence[float],
    activations: Sequence[dict[str, Activation]],
    keras: Keras,
) -> Program:
    """Return the model that averages the members, and how `export` builds it again."""
    inputs = _inputs(members[0].about)
    with float32_model.under_float32(keras.module):
        model = export.average_models(
            keras.module, [member.model for member in members], inputs, list(weights), list(activations)
        )
    rebuild = {
        "builder": "ensemble",
        "arguments": {
            "members": [dict(member.about["rebuild"]) for member in members],
            "inputs": inputs,
            "weights": list(weights),
            "activations": list(activations),
        },
        "inputs": inputs,
        "preprocess": members[0].about.get("preprocess"),
    }
    return Program(model, rebuild=rebuild)


def _compile(
    model: Any, best: CompiledModel, activations: dict[str, Activation], keras: Keras, example: ExampleSpec
) -> CompiledModel:
    """Compile the ensemble with the loss and the metrics of its best member, whose `activations` they lose."""
    if best.own_loss or best.own_metrics or best.own_steps:
        raise InvalidProgram(
            _FIELD,
            f"{type(best.model).__name__} computes its own loss, metrics or steps, which an average has not",
            expected="members with loss and metrics of compile",
        )
    arguments = compiled_arguments(keras, best.model)
    metrics = {
        name: on_probabilities(arguments[name], activations) if arguments[name] else None
        for name in ("metrics", "weighted_metrics")
    }
    model.compile(
        loss=on_probabilities(best.model.loss, activations),
        loss_weights=arguments["loss_weights"],
        **metrics,
        **({} if keras.legacy else {"auto_scale_loss": False, "jit_compile": False}),
    )
    return CompiledModel(keras, model, [label.name for label in example.labels], example.inputs)


def _evaluate(
    worker: Worker, split: Split, preprocess: Preprocess, judges: Sequence[Evaluator]
) -> list[dict[str, float]]:
    """Return the metrics of each over the whole split."""
    batches = split.prediction(
        ranges=[(0, split.count)], batch=PREDICTION_BATCH_SIZE, preprocess=preprocess, taken=lambda _: None
    )
    for inputs, labels, weights, mask in batches:
        if worker.preemption.stop_requested():
            raise Preempted("", "this machine is being preempted")
        for judge in judges:
            judge.add(inputs, labels, weights, np.asarray(mask) > 0)
    return [judge.metrics([judge.sums]) for judge in judges]

"""An ensemble's run: the mean of the members' outputs as one model, evaluated with its best member, and exported."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mptraining_api import events
from mptraining_api.launch import SOURCE_FOLDER
from mptraining_api.problems import InvalidProgram, InvalidSpec, Preempted
from mptraining_api.resolve.batch_size import PREDICTION_BATCH_SIZE
from mptraining_api.resolved_job import ResolvedJob
from mptraining_storage.model_location import locate
from mptraining_trainer import keras_internals
from mptraining_trainer.checkpoints.claim import claim_folder
from mptraining_trainer.data import pipeline, schema
from mptraining_trainer.data.dataset import SkippedRecords, in_field, open_data
from mptraining_trainer.data.schema import ExampleSpec
from mptraining_trainer.devices.strategy import make_strategy, started_fields
from mptraining_trainer.export import export, float32_model
from mptraining_trainer.job.kinds import EnsembleJob
from mptraining_trainer.job.user_code import import_entry_point
from mptraining_trainer.keras_backend import Keras, load
from mptraining_trainer.model.compiled import CompiledModel
from mptraining_trainer.model.program import Program, example_of
from mptraining_trainer.prediction import evaluator, trained_model
from mptraining_trainer.prediction.evaluator import Evaluator
from mptraining_trainer.training_result import TrainingResult
from mptraining_trainer.worker import Worker

_FIELD = "spec.program.ensemble"


class Member(NamedTuple):
    """A run's exported model: `path` is its local copy, `about` the content of its model.json."""

    uri: str
    job: ResolvedJob
    path: Path
    about: Mapping[str, Any]
    model: Any


def average(worker: Worker, kind: EnsembleJob, environment: MutableMapping[str, str]) -> TrainingResult:
    """Average the members, evaluate and export. Raise Problem for every error that is reported to the user."""
    job, telemetry = worker.job, worker.telemetry
    ensemble, data = kind.ensemble, kind.data
    # Devices must be set before any other use of TensorFlow.
    strategy = make_strategy(job, worker.identity, environment)
    keras = load(job.keras)
    if source := environment.get(SOURCE_FOLDER):
        sys.path.insert(0, source)
    scratch = Path(worker.exit_stack.enter_context(tempfile.TemporaryDirectory(prefix="mptraining-")))
    members = [_load(uri, f"{_FIELD}.members[{at}]", scratch / str(at)) for at, uri in enumerate(ensemble.members)]
    best = members[0]
    for number, member in enumerate(members):
        _require_agreement(best, member, f"{_FIELD}.members[{number}]")

    data = trained_model.data_of(best.about, data)
    columns = None
    if data.features is not None:
        columns = schema.decide_columns(data, None, [], lambda text: telemetry.notice("FeaturesInferred", text))
    with in_field("spec.data.validation"):
        split = open_data(data.validation, data, training_columns=columns, notice=telemetry.notice, now=telemetry.now)
    worker.exit_stack.callback(split.reader.close)
    preprocess = trained_model.preprocess_of(best.about, data, keras)
    example = split.columns.example_spec()
    if best.about.get("preprocess") != trained_model.OWN:
        example = preprocess.example_after(example)

    # Two programs of the best member: metrics are objects with a state, which ensemble and member do not share.
    program, another = (evaluator.build_program(best.job, best.path, keras, example) for _ in range(2))
    seen = example_of(program, example)
    weights = ensemble.weights or [1.0] * len(members)
    model, rebuild = _build(members, [weight / sum(weights) for weight in weights], keras)
    compiled = _compile(model, another, keras, seen)
    worker = claim_folder(worker)
    telemetry.emit(
        events.Started,
        **started_fields(job, keras, strategy),
        validation_examples=split.count,
        parameters=int(sum(np.prod(weight.shape) for weight in model.trainable_weights)),
        features=split.columns.describe(),
        start_up_seconds=telemetry.process_seconds(),
    )
    began = telemetry.now()
    # Metrics of the best member are added to the ensemble's, which are named as in training.
    judges = {"val_": Evaluator(compiled, seen), "best_member_val_": Evaluator(program.compiled, seen)}
    skipped = SkippedRecords(worker, [split.reader])
    with skipped.publish_at_end(), pipeline.raise_reading_problems(split):
        for inputs, labels, sample_weights, mask in split.prediction(
            ranges=[(0, split.count)], batch=PREDICTION_BATCH_SIZE, preprocess=preprocess, taken=lambda _: None
        ):
            if worker.preemption.stop_requested():
                raise Preempted("", "this machine is being preempted")
            for judge in judges.values():
                judge.add(inputs, labels, sample_weights, np.asarray(mask) > 0)
    metrics = {
        f"{prefix}{name}": value
        for prefix, judge in judges.items()
        for name, value in judge.metrics([judge.sums]).items()
    }
    built = Program(model=model, compiled=compiled, rebuild=rebuild)
    snapshot = export.take_snapshot(model, keras, scratch, policy="float32")
    return TrainingResult(
        step=None,
        metrics=metrics,
        model=export.publish(worker, built, keras, example, 0, metrics, snapshot, columns=split.columns),
        step_seconds=None,
        training_seconds=telemetry.now() - began,
        skipped_steps=0,
        skipped_records=len(skipped.records),
        message=f"{len(members)} models averaged; the best member is {best.uri}",
        policy="float32",
        input_meter=split.meter,
    )


def _load(uri: str, field: str, scratch: Path) -> Member:
    location = locate(uri, field)
    job = location.job()
    if location.kind != "export" or job is None or not job.program.is_trained_here:
        expected = "the folder of a run of an application or a function, with job.json and model/"
        raise InvalidSpec(field, f"{uri!r} cannot be a member", expected=expected)
    if any(spec.get("ragged") for spec in location.about.get("inputs") or ()):
        raise InvalidSpec(field, f"{uri!r} takes ragged inputs", expected="padded or fixed inputs")
    path = location.download(scratch)
    sys.path.insert(0, str(path / "source"))
    if function := job.program.function:
        # Its modules are exported with the ensemble.
        import_entry_point(function.entry_point, field)
    return Member(uri, job, path, location.about, export.load(path))


def _require_agreement(first: Member, other: Member, field: str) -> None:
    """Raise InvalidSpec for the first difference in what the models take, give and were trained for."""
    for name in ("inputs", "preprocess", "classes", "losses"):
        here, there = first.about.get(name), other.about.get(name)
        if here != there:
            difference = f"the {name} of {other.uri} are {there}, and those of {first.uri} {here}"
            raise InvalidSpec(field, difference[:500], expected=f"members with the same {name}")
    for path in (first.path / "source").rglob("*.py"):
        twin = other.path / path.relative_to(first.path)
        if twin.exists() and twin.read_bytes() != path.read_bytes():
            difference = f"{path.name} of {other.uri} differs from the one of {first.uri}"
            raise InvalidSpec(field, difference, expected="members of the same code")


def _build(members: list[Member], weights: list[float], keras: Keras) -> tuple[Any, dict[str, Any]]:
    """Return the model that averages the members, and how `export` builds it again."""
    preprocess = members[0].about.get("preprocess")
    # Preprocessing of keras.applications converts every image to float32.
    floats = preprocess not in (None, "", trained_model.OWN) and ":" not in str(preprocess)
    inputs = [{**spec, "dtype": "float32"} if floats else dict(spec) for spec in members[0].about["inputs"]]
    with float32_model.under_float32(keras.module):
        model = export.average_models(keras.module, [member.model for member in members], inputs, weights)
    arguments = {"members": [dict(member.about["rebuild"]) for member in members], "inputs": inputs, "weights": weights}
    return model, {"builder": "ensemble", "arguments": arguments, "inputs": inputs, "preprocess": preprocess}


def _compile(model: Any, best: Program, keras: Keras, example: ExampleSpec) -> CompiledModel:
    """Compile the ensemble with the loss and the metrics of its best member."""
    compiled = best.compiled
    if compiled.own_loss or compiled.own_metrics or compiled.own_steps:
        mistake = f"{type(best.model).__name__} computes its own loss, metrics or steps, which an average has not"
        raise InvalidProgram(_FIELD, mistake, expected="members with loss and metrics of compile")
    options = {} if keras.legacy else {"auto_scale_loss": False, "jit_compile": False}
    model.compile(
        loss=best.model.loss, **keras_internals.compiled_arguments(best.model, legacy=keras.legacy), **options
    )
    return CompiledModel(keras, model, [label.name for label in example.labels], example.inputs)

"""One worker's predictions for its share of the records; the chief joins the parts of all workers into one file."""

from __future__ import annotations

import sys
import tempfile
from collections import deque
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf

from mptraining_api import events, run_folder
from mptraining_api.launch import SOURCE_FOLDER
from mptraining_api.problems import InvalidData, InvalidSpec, Preempted
from mptraining_api.programs.fields import Prediction
from mptraining_api.resolved_job import ResolvedData, ResolvedJob
from mptraining_records.tfrecord import example as records
from mptraining_storage import storage
from mptraining_storage.model_location import Location, locate
from mptraining_trainer.checkpoints.claim import claim_folder
from mptraining_trainer.data import pipeline, schema
from mptraining_trainer.data.batching import Share
from mptraining_trainer.data.dataset import SkippedRecords, in_field, open_data
from mptraining_trainer.data.input_stats import InputMeter
from mptraining_trainer.data.pipeline import Split
from mptraining_trainer.data.preprocess import Preprocess
from mptraining_trainer.data.schema import Columns
from mptraining_trainer.devices.strategy import make_strategy, started_fields
from mptraining_trainer.job.kinds import PredictionJob
from mptraining_trainer.keras_backend import Keras, load
from mptraining_trainer.prediction import evaluator, output_columns, trained_model
from mptraining_trainer.prediction.evaluator import Evaluator, Sums
from mptraining_trainer.prediction.parts import Part, PartFiles, identity_of, plan, share
from mptraining_trainer.prediction.trained_model import TrainedModel
from mptraining_trainer.training_result import TrainingResult
from mptraining_trainer.worker import Worker

_MODEL = "spec.program.prediction.model"
_KEY = "spec.program.prediction.key"
_RECORDS = "spec.data.predict"
# Columns that identify a record without a key, and the cause of a missing prediction.
FILE, RECORD, PROBLEM = "file", "record", "problem"


def predict(worker: Worker, kind: PredictionJob, environment: MutableMapping[str, str]) -> TrainingResult:
    """Predict this worker's share of the records. Raise Problem for every error that is reported to the user."""
    job, telemetry = worker.job, worker.telemetry
    prediction, data, batch = kind.prediction, kind.data, kind.batch_size
    _require_output(job, prediction)

    # Devices must be set before any other use of TensorFlow.
    strategy = make_strategy(job, worker.identity, environment)
    keras = load(job.keras)
    if source := environment.get(SOURCE_FOLDER):
        sys.path.insert(0, source)

    # Model
    location = locate(prediction.model, _MODEL)
    scratch = Path(worker.exit_stack.enter_context(tempfile.TemporaryDirectory(prefix="mptraining-")))
    path = location.download(scratch)
    with strategy.scope():
        model = trained_model.load(location, path, keras)
    preprocess = trained_model.preprocess_of(location.about, data, keras)

    # Records
    split = _open_records(worker, trained_model.data_of(location.about, data), model, location, prediction)
    judge = _evaluator(location, path, keras, split.columns, preprocess) if prediction.evaluate else None

    # Parts; the claim comes after everything that can be refused.
    worker = claim_folder(worker)
    identity = identity_of(
        split.dataset.fingerprint, location.identity, data.to_document(), {**prediction.to_document(), "to": None}
    )
    files = PartFiles(storage.join(worker.folder, run_folder.PREDICTION_PARTS), identity)
    parts = plan(split.count, batch)
    mine = share(parts, worker.identity.index, job.workers)
    missing = [part for part in mine if not files.is_complete(part)]
    if len(missing) < len(mine):
        telemetry.notice("PartsKept", f"{len(mine) - len(missing)} of {len(mine)} parts are complete already")
    steps = sum(-(-part.records // batch) for part in missing)
    telemetry.emit(
        events.Started,
        purpose="Prediction",
        **started_fields(job, keras, strategy),
        global_batch_size=batch * strategy.num_replicas_in_sync,
        total_steps=-(-steps // strategy.num_replicas_in_sync),
        train_examples=split.count,
        features=split.columns.describe(),
        start_up_seconds=telemetry.process_seconds(),
    )
    began = telemetry.now()
    work = _Work(worker, strategy, model, split, preprocess, prediction, batch, judge)
    skipped = SkippedRecords(worker, [split.reader])
    step = 0
    with skipped.publish_at_end(), pipeline.raise_reading_problems(split):
        for part, table, sums, step in work.run(missing):  # noqa: B007 - the last step is reported
            files.write(part, table, sums.to_json() if sums else None)
    seconds = telemetry.now() - began

    metrics: dict[str, float] = {}
    message = f"predicted {sum(part.records for part in mine):,} records"
    if worker.identity.is_chief:
        if not files.wait(parts, worker.preemption.wait):
            raise Preempted("", "stopped while other workers were predicting; complete parts are kept")
        if judge is not None:
            metrics = judge.metrics([Sums.from_json(files.note(part)) for part in parts])
        to = prediction.to or storage.join(worker.folder, run_folder.PREDICTIONS)
        check = worker.fence.check if worker.fence is not None else lambda: None
        files.join(parts, to, check)
        files.delete(check)
        message = f"predicted {split.count:,} records: {to}"
    return TrainingResult(
        step=step,
        metrics=metrics,
        model=None,
        step_seconds=None,
        training_seconds=seconds,
        skipped_steps=0,
        skipped_records=len(skipped.records),
        message=message,
        policy="float32",
        input_meter=split.meter,
    )


def _require_output(job: ResolvedJob, prediction: Prediction) -> None:
    if job.output is None and (prediction.to is None or job.workers > 1):
        raise InvalidSpec(
            "spec.output",
            "missing: the predictions would be deleted with the pod",
            expected="output.uri, where the workers write their parts and the file",
            next_step="Name a folder that every worker can write, such as gs://bucket/folder.",
        )


def _open_records(
    worker: Worker, data: ResolvedData, model: TrainedModel, location: Location, prediction: Prediction
) -> Split:
    """Open the records of the prediction with the features of the training, else with those that the model takes."""
    notice, now = worker.telemetry.notice, worker.telemetry.now
    meter = InputMeter()
    columns = None
    if data.features is not None:
        columns = schema.decide_columns(data, None, [], lambda text: notice("FeaturesInferred", text))
    elif not prediction.evaluate and data.label is None and data.labels is None:
        # Records without labels have none to name.
        data = data.model_copy(update={"labels": ()})
    if columns is not None and not prediction.evaluate:
        columns = trained_model.with_optional_labels(columns)
    with in_field(_RECORDS):
        split = open_data(
            data.predict,
            data,
            training_columns=columns,
            notice=notice,
            now=now,
            share=Share(worker.identity.index, worker.job.workers),
            meter=meter,
        )
    worker.exit_stack.callback(split.reader.close)
    if columns is not None or data.preprocess not in ("auto", "none") or location.about.get("preprocess"):
        return split
    return replace(split, columns=trained_model.only_inputs(split.columns, model.inputs, "spec.data.features"))


def _evaluator(location: Location, path: Path, keras: Keras, columns: Columns, preprocess: Preprocess) -> Evaluator:
    if not columns.labels:
        raise InvalidSpec(
            evaluator.FIELD, "the records have no labels that are known", next_step="Name data.label or data.labels."
        )
    example = columns.example_spec()
    job = location.job()
    if location.kind == "keras":
        return evaluator.of_file(location, path, keras, preprocess.example_after(example))
    if job is None:
        raise InvalidSpec(
            evaluator.FIELD,
            f"{location.uri} is not in a run folder, whose job names the loss and the metrics",
            next_step="Give the run folder as the model.",
        )
    if location.about.get("preprocess") == trained_model.OWN:
        preprocess = Preprocess()
    return evaluator.of_run(job, path, keras, preprocess.example_after(example))


@dataclass
class _Work:
    """The loop over batches: `run` yields the tables of parts in order."""

    _worker: Worker
    _strategy: Any
    _model: TrainedModel
    _split: Split
    _preprocess: Preprocess
    _prediction: Prediction
    _batch: int
    _judge: Evaluator | None

    def __post_init__(self) -> None:
        # The keys of the batches that were read and not predicted yet.
        self._keys: deque[list[Any]] = deque()
        self._classifiers: dict[str, output_columns.Classifier] | None = None
        call = self._model.caller(self._preprocess.example_after(self._split.columns.example_spec()))

        def forward(inputs: Any) -> Any:
            return self._strategy.run(call, args=(inputs,))

        self._forward = self._model.keras.function(forward, reduce_retracing=True)

    def run(self, parts: Sequence[Part]) -> Iterator[tuple[Part, pa.Table, Sums | None, int]]:
        """Predict these parts; yield each with its table, its sums for the metrics, and the number of steps so far.

        Raise Preempted if the worker is told to stop.
        """
        replicas = self._strategy.num_replicas_in_sync
        batches = iter(
            self._split.prediction(
                ranges=[(part.first, part.end) for part in parts],
                batch=self._batch,
                preprocess=self._preprocess,
                taken=self._take_keys,
            )
        )
        pending = deque((part, number) for part in parts for number in range(-(-part.records // self._batch)))
        tables: list[dict[str, pa.Array]] = []
        total, step, reported = -(-len(pending) // replicas), 0, self._worker.telemetry.now()
        examples = 0
        while pending:
            if self._worker.preemption.stop_requested():
                raise Preempted("", "this machine is being preempted; complete parts are kept")
            group = [next(batches) for _ in range(min(replicas, len(pending)))]
            for batch, outputs in zip(group, self._outputs(group), strict=True):
                part, number = pending.popleft()
                first = part.first + number * self._batch
                count = min(self._batch, part.end - first)
                tables.append(self._rows(first, np.asarray(batch[3])[:count], outputs))
                if self._judge is not None:
                    self._judge.add(batch[0], batch[1], batch[2], np.asarray(batch[3]) > 0)
                examples += count
                if first + count == part.end:
                    sums = self._judge.sums if self._judge is not None else None
                    # A column of nulls only takes the type of the others.
                    joined = pa.concat_tables(map(pa.table, tables), promote_options="permissive")
                    yield part, joined, sums, step + 1
                    tables = []
                    if self._judge is not None:
                        self._judge.reset()
            step += 1
            now = self._worker.telemetry.now()
            if now - reported >= self._worker.progress_seconds or not pending:
                speed = examples / max(1e-9, now - reported)
                self._worker.telemetry.emit(
                    events.Progress, step=step, total_steps=total, epoch=0, metrics={}, examples_per_second=speed
                )
                reported, examples = now, 0

    def _outputs(self, group: Sequence[Any]) -> list[Any]:
        """Return the outputs of the batches, one for each replica; a missing last one repeats the first."""
        replicas = self._strategy.num_replicas_in_sync
        if replicas == 1:
            returned = [self._forward(group[0][0])]
        else:
            inputs = self._strategy.experimental_distribute_values_from_function(
                lambda context: group[context.replica_id_in_sync_group % len(group)][0]
            )
            distributed = self._forward(inputs)
            flat = [self._strategy.experimental_local_results(tensor) for tensor in tf.nest.flatten(distributed)]
            returned = [
                tf.nest.pack_sequence_as(distributed, [leaf[replica] for leaf in flat]) for replica in range(replicas)
            ]
        return returned[: len(group)]

    def _rows(self, first: int, mask: Any, outputs: Any) -> dict[str, pa.Array]:
        """Return the columns of one batch whose records begin with number `first`; `mask` [rows] is 0 for a bad one."""
        named = output_columns.by_name(outputs, self._model.outputs)
        if self._classifiers is None:
            shapes = {name: tuple(output.shape) for name, output in named.items()}
            model = self._model
            self._classifiers = output_columns.classifiers(shapes, model.losses, model.activation, model.classes)
        for name, output in named.items():
            if output.shape.rank == 0 or output.shape[0] != self._batch:
                raise InvalidData(
                    _MODEL,
                    f"the output {name!r} has the shape {list(output.shape)} for {self._batch} records",
                    expected="one row for each record",
                )
        places = [row if mask[row] > 0 else None for row in range(len(mask))]
        columns = self._identity(first, len(mask))
        outputs = output_columns.table(named, self._classifiers, places)
        if taken := outputs.keys() & {*columns, PROBLEM}:
            raise InvalidSpec(
                _KEY if self._prediction.key in taken else _MODEL,
                f"{min(taken)!r} is the name of a column of the outputs, too",
                expected="different names",
                next_step="Choose another key.",
            )
        columns |= outputs
        if self._split.reader.bad_records.action == "Skip":
            causes = [self._problem(first + row, sound=mask[row] > 0) for row in range(len(mask))]
            columns[PROBLEM] = pa.array(causes, pa.string())
        return columns

    def _identity(self, first: int, count: int) -> dict[str, pa.Array]:
        if self._prediction.key is not None:
            keys = self._keys.popleft()[:count]
            try:
                return {self._prediction.key: pa.array(keys)}
            except (pa.ArrowInvalid, pa.ArrowTypeError):
                kinds = sorted({type(key).__name__ for key in keys if key is not None})
                raise InvalidSpec(
                    _KEY, f"{self._prediction.key!r} has values of the types {kinds}", expected="one type"
                ) from None
        origins = [self._split.dataset.bad_record(number, "") for number in range(first, first + count)]
        return {
            FILE: pa.array([origin.uri for origin in origins], pa.string()),
            RECORD: pa.array([origin.record for origin in origins], pa.int64()),
        }

    def _problem(self, number: int, *, sound: bool) -> str | None:
        """Return why a record has no prediction, with its place; None for one that has."""
        if sound:
            return None
        origin = self._split.dataset.bad_record(number, "")
        known = {(bad.uri, bad.offset): bad.cause for bad in self._split.reader.skipped}
        return f"{origin.uri}, record {origin.record}: {known.get((origin.uri, origin.offset), 'damaged')}"

    def _take_keys(self, batch: Sequence[bytes | None]) -> None:
        key = self._prediction.key
        if key is not None:
            self._keys.append([None if record is None else _key(record, key) for record in batch])


def _key(record: bytes, name: str) -> Any:
    """Return the only value of the feature. Raise InvalidSpec if a record has none, or several."""
    try:
        features = records.parse(record)
    except InvalidData:
        # The decoder reports it.
        return None
    kind, values = features.get(name, ("bytes", []))
    if len(values) != 1:
        raise InvalidSpec(
            _KEY,
            f"the feature {name!r} of a record has {len(values)} values",
            expected=f"one value in each record; this one has {', '.join(sorted(features))}",
        )
    value: Any = values[0]
    return bytes(value).decode("utf-8", errors="replace") if kind == "bytes" else value.item()

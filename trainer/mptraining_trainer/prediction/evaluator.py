"""Loss and metrics of a trained model over records with labels, as Keras' own `evaluate` computes them.

The state of a metric is a sum over examples, as tf.distribute assumes too: the states of several parts are added.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from mptraining_api.problems import InvalidProgram, InvalidSpec
from mptraining_api.resolved_job import ResolvedJob
from mptraining_storage.model_location import Location
from mptraining_trainer.data.batch_spec import example_specs
from mptraining_trainer.data.schema import ExampleSpec
from mptraining_trainer.export.float32_model import under_float32
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.model import program
from mptraining_trainer.model.compiled import CompiledModel

FIELD = "spec.program.prediction.evaluate"


@dataclass(frozen=True)
class Sums:
    """Sum of the losses, number of examples, and the states of the metrics in the order of their variables."""

    loss: float
    examples: int
    states: tuple[Any, ...]

    def to_json(self) -> Any:
        """Return JSON values."""
        return {"loss": self.loss, "examples": self.examples, "states": [state.tolist() for state in self.states]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Sums:
        """Return the sums that `to_json` wrote."""
        states = tuple(np.asarray(state, np.float64) for state in document["states"])
        return cls(float(document["loss"]), int(document["examples"]), states)


class Evaluator:
    """Evaluates a compiled model batch by batch, on the first device; `example` is its input and labels.

    Raises InvalidSpec for a model with its own `test_step` or `compute_metrics`.
    """

    def __init__(self, compiled: CompiledModel, example: ExampleSpec) -> None:
        self._compiled = compiled
        if "test_step" in compiled.own_steps or compiled.own_metrics:
            raise InvalidSpec(
                FIELD,
                f"{type(compiled.model).__name__} has its own test_step or compute_metrics",
                next_step="Compute its metrics from the predictions.",
            )
        compiled.build(example_specs(example, 2))
        self._variables = [
            variable for metric in compiled.evaluation_metrics for variable in compiled.keras.variables(metric)
        ]
        self._step = compiled.keras.function(self._graph, reduce_retracing=True)
        self.reset()

    def reset(self) -> None:
        """Begin a new sum."""
        self._compiled.model.reset_metrics()
        self._loss, self._examples = 0.0, 0

    def add(self, inputs: Any, labels: Any, weights: Any, rows: Any) -> None:
        """Add one batch; only its rows in `rows`, a boolean array [batch], count."""
        count = int(np.sum(rows))
        if not count:
            return
        kept = tf.constant(rows, tf.bool)
        batch = tf.nest.map_structure(lambda tensor: _rows(tensor, kept), (inputs, labels, weights))
        self._loss += float(self._step(*batch, tf.constant(count, tf.float32))) * count
        self._examples += count

    @property
    def sums(self) -> Sums:
        """The sums since the last reset."""
        return Sums(self._loss, self._examples, tuple(variable.numpy() for variable in self._variables))

    def metrics(self, parts: Sequence[Sums]) -> dict[str, float]:
        """Return the loss and the metrics of all parts together, by the names of training."""
        for index, variable in enumerate(self._variables):
            variable.assign(tf.cast(sum(part.states[index] for part in parts), variable.dtype))
        examples = sum(part.examples for part in parts)
        values = {"loss": sum(part.loss for part in parts) / examples} if examples else {}
        results = self._compiled.results(self._compiled.evaluation_metrics)
        return values | {name: float(value) for name, value in results.items()}

    def _graph(self, inputs: Any, labels: Any, weights: Any, rows: Any) -> Any:
        compiled = self._compiled
        inputs, labels, weights = compiled.keras_arguments((inputs, labels, weights))
        predictions = compiled.predictions(inputs, training=False)
        # Keras' own means of the losses of several outputs count batches of unequal size alike otherwise.
        with compiled.weight_output_losses(rows):
            loss = compiled.loss(inputs, labels, predictions, weights, training=False)
        compiled.update_metrics(inputs, labels, predictions, weights)
        return loss


def of_run(job: ResolvedJob, path: Path, keras: Keras, example: ExampleSpec) -> Evaluator:
    """Return the evaluator of a run's exported model at `path`, with the loss and the metrics of its job.

    `example` is one example after the function of the job's `data.preprocess`. Raises
    InvalidSpec for the run of a script or an ensemble.
    """
    if not job.program.is_trained_here:
        raise InvalidSpec(
            FIELD,
            f"the run is of {'an ensemble' if job.program.ensemble else 'a script'}, whose loss is not known",
            next_step="Compute the metrics from the predictions.",
        )
    built = build_program(job, path, keras, example)
    return Evaluator(built.compiled, program.example_of(built, example))


def build_program(job: ResolvedJob, path: Path, keras: Keras, example: ExampleSpec) -> program.Program:
    """Return the program of a run, compiled and with the exported weights of `path`.

    Raises InvalidProgram if the program builds another model than the exported one.
    """
    about = json.loads((path / "model.json").read_text(encoding="utf-8"))
    if (application := job.program.application) is not None:
        # The weights that training began with are not needed again; the training's manifest may have named the classes.
        classes = application.classes or len(about.get("classes") or ()) or None
        application = application.model_copy(update={"weights": "none", "freeze_base": False, "classes": classes})
        job = job.model_copy(update={"program": job.program.model_copy(update={"application": application})})
    if reason := about.get("leftOut", {}).get("rebuild.py"):
        raise InvalidProgram("spec.program", f"the program builds another model than it did: {reason}")
    with under_float32(keras.module):
        built = program.build(job, keras, example, lambda *_, **__: None)
    with np.load(path / "weights.npz") as arrays:
        try:
            built.model.set_weights([arrays[key] for key in arrays.files])
        except ValueError as error:
            line = " ".join(str(error).split())[:300]
            raise InvalidProgram("spec.program", f"the program builds another model than it did: {line}") from error
    return built


def of_file(location: Location, path: Path, keras: Keras, example: ExampleSpec) -> Evaluator:
    """Return the evaluator of a `.keras` file with the loss and the metrics that it was compiled with.

    Raises InvalidSpec if it has none.
    """
    with under_float32(keras.module):
        model = keras.module.models.load_model(path)
    if getattr(model, "loss", None) is None:
        raise InvalidSpec(
            FIELD,
            f"{location.uri} was saved without a loss",
            next_step="Compile the model before it is saved, or give a run folder.",
        )
    compiled = CompiledModel(keras, model, [label.name for label in example.labels], example.inputs)
    return Evaluator(compiled, example)


def _rows(tensor: Any, kept: Any) -> Any:
    masked = tf.ragged.boolean_mask if isinstance(tensor, tf.RaggedTensor) else tf.boolean_mask
    return masked(tensor, kept)

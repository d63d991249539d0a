"""A trained model, loaded for predictions: its call, its preprocessing, and the features of its records."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from mptraining_api.problems import InvalidData, InvalidProgram, InvalidSpec
from mptraining_api.programs.fields import Function
from mptraining_api.resolved_job import ResolvedData
from mptraining_api.spec import Feature
from mptraining_storage.model_location import Location
from mptraining_trainer import keras_internals
from mptraining_trainer.data.preprocess import Preprocess, check_signature
from mptraining_trainer.data.schema import Column, Columns, ExampleSpec
from mptraining_trainer.export import export, float32_model
from mptraining_trainer.job.user_code import import_entry_point
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.model.applications import preprocess_by_label
from mptraining_trainer.model.compiled import CompiledModel
from mptraining_trainer.model.output_losses import OutputLoss
from mptraining_trainer.model.program import call_function

# The preprocessing of a function program, as model.json names it.
OWN = "the program's own"
_MODEL = "spec.program.prediction.model"


@dataclass(frozen=True)
class TrainedModel:
    """`model` is a Keras model, or the signature of a SavedModel.

    `inputs` are the names of its inputs, None if they are not known; `outputs` those of a list of outputs. `losses`
    are the losses by output, `activation` is that of the only output's layer, `classes` are the names of its classes.
    """

    model: Any
    keras: Keras
    is_saved_model: bool
    inputs: tuple[str, ...] | None
    outputs: tuple[str, ...]
    losses: Mapping[str, OutputLoss]
    activation: str | None
    classes: tuple[str, ...] | None
    # The loaded SavedModel, whose variables live as long as it does; its signature does not keep them.
    owner: Any = None

    def caller(self, example: ExampleSpec) -> Callable[[Any], Any]:
        """Return the function from a batch of inputs to outputs; `example` is one example after preprocessing.

        Raises InvalidSpec for inputs that the model does not take.
        """
        if self.is_saved_model:
            return self._signature_caller(example)
        compiled = CompiledModel(self.keras, self.model, features=example.inputs)

        def call(inputs: Any) -> Any:
            return compiled.predictions(compiled.arrange_inputs(inputs), training=False)

        return call

    def _signature_caller(self, example: ExampleSpec) -> Callable[[Any], Any]:
        specs = self.model.structured_input_signature[1]
        names = [tensor.name for tensor in example.inputs]
        if len(names) == len(specs) == 1:
            (only,) = specs
            return lambda inputs: self.model(**{only: tf.cast(inputs, specs[only].dtype)})
        _require_inputs(names, list(specs))
        return lambda inputs: self.model(**{name: tf.cast(inputs[name], specs[name].dtype) for name in specs})


def load(location: Location, path: Path, keras: Keras) -> TrainedModel:
    """Load the model at `path`, a local copy of `location`; call it inside `strategy.scope()`.

    Raises InvalidData if Keras cannot open it.
    """
    about = location.about
    if location.kind == "saved_model":
        return _load_saved_model(path, keras)
    if about.get("formats") == [export.SAVED_MODEL]:
        return _load_saved_model(path / export.SAVED_MODEL, keras)
    if location.kind == "export":
        # The program's own modules, for classes and preprocessing.
        sys.path.insert(0, str(path / "source"))
        model = export.load(path)
    else:
        try:
            with float32_model.under_float32(keras.module):
                model = keras.module.models.load_model(path, compile=False)
        except (TypeError, ValueError, OSError) as error:
            line = " ".join(str(error).split())[:300]
            step = "Give a run folder, or its model/, which has the program's own classes with it."
            raise InvalidData(location.uri, f"Keras cannot open it: {line}", next_step=step) from error
    losses = {name: OutputLoss(**fields) for name, fields in (about.get("losses") or {}).items()}
    layer = None
    with contextlib.suppress(Exception):
        layer = keras.output_layer(model)
    return TrainedModel(
        model,
        keras,
        is_saved_model=False,
        inputs=_input_names(model, keras),
        outputs=tuple(getattr(model, "output_names", None) or ()),
        losses=losses,
        activation=getattr(getattr(layer, "activation", None), "__name__", None),
        classes=tuple(about["classes"]) if about.get("classes") else None,
    )


def preprocess_of(about: Mapping[str, Any], data: ResolvedData, keras: Keras) -> Preprocess:
    """Return the preprocessing before the model: the job's own, or with `auto` that of the training.

    `about` is the content of model.json. Raises InvalidProgram if a function of the training cannot be imported.
    """
    where = "spec.data.preprocess"
    if data.preprocess == "none":
        return Preprocess()
    name = data.preprocess if data.preprocess != "auto" else about.get("preprocess")
    if not name:
        return Preprocess()
    if name == OWN:
        rebuild = about["rebuild"]
        if rebuild["builder"] == "ensemble":
            # Its members have the same preprocessing.
            rebuild = rebuild["arguments"]["members"][0]
        parts = call_function(Function.parse(rebuild["arguments"]), keras)
        if parts.get("preprocess") is None:
            raise InvalidProgram(where, "the program no longer returns its 'preprocess'")
        return Preprocess(check_signature(parts["preprocess"]))
    if ":" in name:
        return Preprocess(check_signature(import_entry_point(name, where)))
    return Preprocess(per_batch=preprocess_by_label(name, keras))


def data_of(about: Mapping[str, Any], data: ResolvedData) -> ResolvedData:
    """Return the job's data section with the features of the training where the job names none."""
    records = about.get("records")
    if data.features is not None or not records:
        return data
    own_labels = data.label is not None or data.labels is not None
    return data.model_copy(
        update={
            "features": tuple(Feature.parse(record) for record in records["features"]),
            "labels": data.labels if own_labels else tuple(records["labels"]),
            "sample_weight": data.sample_weight or records["sampleWeight"],
        }
    )


def with_optional_labels(columns: Columns) -> Columns:
    """Return the columns; a record may lack the labels and the weight, which are then zeros."""
    optional = {*columns.labels, columns.weight}

    def filled(column: Column) -> Column:
        if column.name not in optional or column.default is not None:
            return column
        return replace(column, default="" if column.dtype == "string" else 0)

    return replace(columns, columns=tuple(map(filled, columns.columns)))


def only_inputs(columns: Columns, inputs: tuple[str, ...] | None, field: str) -> Columns:
    """Return the columns that the model takes: by the names of its inputs, or the only one.

    Raises InvalidSpec naming `field` if they are not known.
    """
    roles = {*columns.labels, columns.weight}
    others = [column for column in columns.columns if column.name not in roles]
    kept = [column for column in columns.columns if column.name in roles]
    names = {column.name for column in others}
    if inputs and set(inputs) <= names:
        return replace(columns, columns=(*(other for other in others if other.name in inputs), *kept))
    if len(others) > 1 and inputs is not None:
        raise InvalidSpec(
            field,
            f"the records have {sorted(names)}, and the model takes {sorted(inputs)}",
            next_step="Name the inputs under data.features, and the labels under data.labels.",
        )
    return columns


def _load_saved_model(path: Path, keras: Keras) -> TrainedModel:
    loaded = tf.saved_model.load(str(path))
    signature = loaded.signatures.get("serving_default")
    if signature is None:
        raise InvalidSpec(_MODEL, f"{path} has no signature serving_default", next_step="Export it with model.export.")
    return TrainedModel(
        signature,
        keras,
        is_saved_model=True,
        inputs=tuple(signature.structured_input_signature[1]),
        outputs=(),
        losses={},
        activation=None,
        classes=None,
        owner=loaded,
    )


def _input_names(model: Any, keras: Keras) -> tuple[str, ...] | None:
    structure = keras_internals.input_structure(model, legacy=keras.legacy)
    if structure is None:
        return None
    if isinstance(structure, Mapping):
        return tuple(structure)
    names = getattr(model, "input_names", None)
    return tuple(names) if names else None


def _require_inputs(features: Sequence[str], inputs: Sequence[str]) -> None:
    if not set(inputs) <= set(features):
        raise InvalidSpec(
            "spec.data.features",
            f"the records have {sorted(features)}, and the model takes {sorted(inputs)}",
            next_step="Name the inputs of the model under data.features.",
        )

"""A compiled Keras model: its own loss, metrics and steps, with one interface for Keras 3 and tf_keras."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import tensorflow as tf

from mptraining_api.problems import InvalidProgram
from mptraining_trainer import keras_internals
from mptraining_trainer.data.batch_spec import batch_spec
from mptraining_trainer.data.schema import TensorSpec
from mptraining_trainer.keras_backend import Keras

_FEATURES = "spec.data.features"


def input_order(keras: Keras, model: Any, features: Sequence[TensorSpec]) -> tuple[str, ...] | None:
    """Return the features' names in the order of the model's list of inputs; None if it takes them in another way.

    Features are matched by the names of the input layers or tensors if they have these, otherwise by their own order.
    Raises InvalidProgram for features that do not match a functional model's inputs in number, name or shape.
    """
    inputs = keras_internals.input_structure(model, legacy=keras.legacy)
    given = {feature.name: feature for feature in features}
    if isinstance(inputs, Mapping):
        if len(inputs) > 1 and not set(given) >= set(inputs):
            raise _mismatch(model, list(inputs), features, "they are a dict by other names")
        return None
    # Keras checks nested structures.
    tensors: list[Any] = list(inputs) if isinstance(inputs, Sequence) else [inputs]
    input_layers = [keras_internals.input_layer(tensor) for tensor in tensors]
    if None in input_layers:
        return None
    layers, named = [layer.name for layer in input_layers if layer], [tensor.name for tensor in tensors]
    if len(tensors) != len(given):
        # Keras accepts a dict with additional entries.
        if set(given) >= set(layers if keras.legacy else named):
            return None
        raise _mismatch(model, layers, features, f"{len(given)} for {len(tensors)}")
    if len(tensors) == 1:
        return None
    names = next((candidate for candidate in (layers, named) if set(candidate) == set(given)), list(given))
    for tensor, layer, name in zip(tensors, layers, names, strict=True):
        if layer != name and layer in given:
            raise _mismatch(model, layers, features, f"by their order {name!r} would be the input {layer!r}")
        if not _is_compatible(tf.TensorShape(tensor.shape)[1:], tf.TensorShape(given[name].shape)):
            raise _mismatch(model, layers, features, f"{name!r} would be the input {layer!r} {list(tensor.shape[1:])}")
    return tuple(names)


def shape_mismatch(compiled: CompiledModel, features: Sequence[TensorSpec], raised: str) -> InvalidProgram | None:
    """Return the problem of an only feature whose shape is not that of the model's only input; None for others.

    For a training step that has failed with the text `raised`. A model of convolutions may well take other sizes than
    its `Input` names: then the failure has another cause, and the shapes are only a hint.
    """
    tensors = getattr(compiled.model, "inputs", None)
    if not isinstance(tensors, Sequence) or len(tensors) != 1 or len(features) != 1:
        return None
    (tensor,), (feature,) = tensors, features
    expected, actual = tf.TensorShape(tensor.shape)[1:], tf.TensorShape(feature.shape)
    if _is_compatible(expected, actual):
        return None
    if not compiled.refuses(feature):
        return InvalidProgram(
            "spec.program",
            raised,
            next_step=f"The feature {feature.name!r} has shape {_shape(actual)}, the model's Input {_shape(expected)}, "
            "but the model accepts it",
        )
    step = "Give the records this shape (data.features, data.preprocess)"
    if expected.rank == actual.rank == 3 and not expected[2:].is_compatible_with(actual[2:]):
        step = (
            f"Give the records {expected[2]} channels (an encoded image is decoded to those of its shape in "
            "data.features)"
        )
    elif expected.rank == actual.rank == 3 and expected[0] and expected[1]:
        step = f"Give the feature in data.features resize: [{expected[0]}, {expected[1]}]"
    return InvalidProgram(
        _FEATURES,
        f"the model does not accept the records' features: {feature.name!r} has shape {_shape(actual)}",
        expected=f"{_shape(expected)}, the shape of the model's input",
        next_step=f"{step}, or change the model's Input to shape {_shape(actual)}. {raised[:300]}",
    )


def _shape(shape: Any) -> str:
    return str(shape.as_list()) if shape.rank is not None else "of any rank"


def _is_compatible(expected: Any, given: Any) -> bool:
    # Keras adds and removes a last axis of size 1.
    if expected.rank is None or given.rank is None or abs(expected.rank - given.rank) == 1:
        return True
    return bool(expected.is_compatible_with(given))


def _mismatch(model: Any, inputs: Sequence[str], features: Sequence[TensorSpec], why: str) -> InvalidProgram:
    shapes = ", ".join(f"{feature.name} {list(feature.shape)}" for feature in features)
    return InvalidProgram(
        _FEATURES,
        f"{shapes or 'none'} do not fit the inputs of {type(model).__name__}: {why}",
        expected=f"{len(inputs)} features, {', '.join(inputs)}",
        next_step="Name the features as the model's inputs, or list as many in the order of its inputs.",
    )


def flatten_metrics(metrics: Sequence[Any]) -> list[Any]:
    """Return the metrics, each container replaced by its own metrics."""
    return [part for metric in metrics for part in getattr(metric, "metrics", None) or [metric]]


def result_of(metric: Any) -> Any:
    """Return the metric's result over all replicas."""
    try:
        return metric.result()
    except NotImplementedError:
        # The wrapper around `result` in tf_keras fails to read AutoCastVariables over replicas under a mixed policy;
        # the method without the wrapper reads them.
        return type(metric).result(metric)


class CompiledModel:
    """`compute_loss` and the compiled metrics of `model`, called as in `fit`; the objects are not created again.

    `labels` are the names of several labels in the order of the job: a model whose outputs have these names gets a
    dict, other models a list in this order, as with `fit(y=...)`. `features` are the model's input features: a model
    whose inputs are a list gets them as a tuple, as with `fit(x=[...])`. Raises InvalidProgram for features that do not
    match.
    """

    def __init__(
        self, keras: Keras, model: Any, labels: Sequence[str] = (), features: Sequence[TensorSpec] = ()
    ) -> None:
        self.keras = keras
        self.model = model
        self._labels = tuple(labels)
        # Names of the features in the order of a list of inputs.
        self.inputs = input_order(keras, model, features) if features else None
        # Names of the outputs; None where the outputs are a list without names.
        structure = keras_internals.output_structure(model, legacy=keras.legacy)
        named = structure if isinstance(structure, Mapping) else getattr(model, "output_names", None)
        self._outputs = _names(named)
        # The last results of an overridden `compute_metrics` that are not metrics of the model, by name.
        self._returned: dict[str, Any] = {}

    def arrange_inputs(self, inputs: Any) -> Any:
        """Return a batch's inputs in the structure that Keras expects."""
        if self.inputs is None or not isinstance(inputs, Mapping):
            return inputs
        return tuple(inputs[name] for name in self.inputs)

    def arrange_labels(self, labels: Any) -> Any:
        """Return a batch's labels in the structure that Keras expects; None without labels."""
        if isinstance(labels, tuple) and not labels:
            return None
        if not isinstance(labels, Mapping):
            return labels
        if self._outputs is not None and self._outputs >= set(labels):
            return dict(labels)
        return [labels[name] for name in self._labels]

    def keras_arguments(self, batch: tuple[Any, ...]) -> tuple[Any, Any, Any]:
        """Return inputs, labels and weights as `fit` passes them on: None where the batch has an empty tuple."""
        inputs, labels, weights = batch
        weights = None if isinstance(weights, tuple) and not weights else weights
        return self.arrange_inputs(inputs), self.arrange_labels(labels), weights

    def predictions(self, inputs: Any, *, training: bool) -> Any:
        """Return the model's outputs, called as in `fit` and `evaluate`."""
        if self.keras.legacy or keras_internals.takes_training(self.model):
            return self.model(inputs, training=training)
        return self.model(inputs)

    def refuses(self, feature: TensorSpec) -> bool:
        """Return whether a call of the model with this only feature fails because of the feature."""
        try:
            self._trace_outputs(batch_spec(feature, 2))
        except (ValueError, tf.errors.InvalidArgumentError):
            return True
        except Exception:  # noqa: BLE001 - a layer of the user may raise any error
            return False
        return False

    def loss(self, inputs: Any, labels: Any, predictions: Any, weights: Any, *, training: bool) -> Any:
        """Return Keras' total loss of compiled losses, regularizers and `add_loss`.

        It is a scalar unless a loss has no reduction. Raises InvalidProgram if there is no loss.
        """
        legacy = self.keras.legacy
        loss = keras_internals.total_loss(
            self.model, inputs, labels, predictions, weights, training=training, legacy=legacy
        )
        if loss is None:
            raise InvalidProgram(
                "loss", "no loss to compute", next_step="Give compile(loss=...), spec.training.loss or add_loss."
            )
        return loss

    def update_metrics(self, inputs: Any, labels: Any, predictions: Any, weights: Any) -> None:
        """Update the compiled metrics with one batch, by the model's `compute_metrics` if it overrides that."""
        if self.own_metrics:
            with self.results_of_one_replica():
                logs = self.model.compute_metrics(inputs, labels, predictions, weights)
            for name, variable in self._returned.items():
                variable.assign(tf.cast(logs[name], tf.float32))
            return
        metrics = keras_internals.compiled_metrics(self.model, legacy=self.keras.legacy)
        if metrics is not None:
            metrics.update_state(labels, predictions, weights)

    @contextmanager
    def weight_output_losses(self, weight: Any) -> Iterator[None]:
        """In the block, weight a part of a batch by `weight` in Keras' per-output loss means."""

        def weighted(update: Callable[..., Any], values: Any, _weight: Any) -> Any:
            return update(values, sample_weight=weight)

        with ExitStack() as ends:
            for tracker in keras_internals.output_loss_trackers(self.model, legacy=self.keras.legacy):
                ends.enter_context(keras_internals.replace_update(tracker, weighted))
            yield

    @contextmanager
    def results_of_one_replica(self) -> Iterator[None]:
        """In the block, read only this replica's part of tf_keras' metrics: a condition allows no all-reduce."""
        wrapped = (
            [(metric, metric.result) for metric in flatten_metrics(self.model.metrics)] if self.keras.legacy else []
        )
        for metric, _ in wrapped:
            object.__setattr__(metric, "result", partial(type(metric).result, metric))
        try:
            yield
        finally:
            for metric, result in wrapped:
                object.__setattr__(metric, "result", result)

    @property
    def metrics(self) -> list[Any]:
        """All metrics of the model, without Keras' own mean of the loss if the training step sums the loss itself."""
        return list(self.model.metrics) if "train_step" in self.own_steps else self.evaluation_metrics

    def metric_directions(self, names: Sequence[str] | None = None) -> dict[str, str | None]:
        """Return the names in the logs except the loss, of the compiled metrics by default, each with the direction
        that is better by Keras: up, down or None.
        """
        known = {metric.name: keras_internals.better_direction(metric) for metric in flatten_metrics(self.metrics)}
        if names is None:
            # Trace only, because reading values that differ between replicas is a collective operation.
            traced = tf.function(self.results, autograph=False).get_concrete_function()
            names = list(traced.structured_outputs)
        return {name: known.get(name) for name in names if name != "loss"}

    def results(self, metrics: Sequence[Any] | None = None) -> dict[str, Any]:
        """Return the metrics' results as Keras logs them, float32 scalars; the elements of a vector are numbered."""
        values: dict[str, Any] = {}
        for metric in self.metrics if metrics is None else metrics:
            result = result_of(metric)
            values |= result if isinstance(result, Mapping) else {metric.name: result}
        values |= {name: variable.read_value() for name, variable in self._returned.items()}
        scalars: dict[str, Any] = {}
        for name, result in values.items():
            value = tf.cast(tf.convert_to_tensor(result), tf.float32)
            if value.shape.rank == 0:
                scalars[name] = value
            else:
                elements = tf.reshape(value, [-1])
                scalars |= {f"{name}_{index}": elements[index] for index in range(elements.shape[0])}
        return scalars

    @property
    def names_of_compile(self) -> set[str]:
        """The names of the metrics that `compile` was given, which say nothing of the weights if they are NaN."""
        container = keras_internals.compiled_metrics(self.model, legacy=self.keras.legacy)
        return set() if container is None else {metric.name for metric in flatten_metrics(container.metrics)}

    @property
    def evaluation_metrics(self) -> list[Any]:
        """The metrics that Keras' own `test_step` updates, without its mean of the total loss."""
        tracker = keras_internals.loss_tracker(self.model, legacy=self.keras.legacy)
        return [metric for metric in self.model.metrics if metric is not tracker]

    @property
    def own_metrics(self) -> bool:
        """True if the model's class overrides `compute_metrics`."""
        base = self.keras.module.Model
        return type(self.model).compute_metrics is not base.compute_metrics

    @property
    def own_loss(self) -> bool:
        """True if the model's class overrides `compute_loss`."""
        base = self.keras.module.Model
        return type(self.model).compute_loss is not base.compute_loss

    @property
    def own_steps(self) -> tuple[str, ...]:
        """The names among `train_step` and `test_step` that the model's class overrides."""
        return self.keras.own_steps(self.model)

    def build(self, batch: tuple[Any, Any, Any]) -> None:
        """Build the compiled loss and metrics from tensors or specs (inputs, labels, weights), without running them.

        Call it inside the strategy's scope, so that every replica has the metrics' variables.
        """
        inputs, labels, weights = batch
        inputs = self.arrange_inputs(inputs)
        weights = None if isinstance(weights, tuple) else weights
        if isinstance(labels, Mapping) and self._outputs is None:
            # The outputs of a model that is not functional are only known from a call.
            outputs = self._trace_outputs(_specs(inputs))
            self._outputs = _names(outputs if isinstance(outputs, Mapping) else None)
        labels = self.arrange_labels(labels)
        if self.keras.legacy:
            self._build_tf_keras(_specs(inputs), _specs(labels))
        else:
            self._build_keras_3(_specs(inputs), _specs(labels), _specs(weights))
        if labels is not None:
            self._build_by_update(_specs(inputs), _specs(labels), _specs(weights))
        if self.own_metrics:
            self._build_returned_values(_specs(inputs), _specs(labels), _specs(weights))

    def _build_keras_3(self, inputs: Any, labels: Any, weights: Any) -> None:
        try:
            keras_internals.build_symbolically(self.model, (inputs, labels, weights))
        except (ValueError, RuntimeError, TypeError, NotImplementedError):
            # Keras builds with symbolic tensors; a model that needs real tensors is traced.
            predictions = self._trace_outputs(inputs)
            for container in (
                keras_internals.compiled_metrics(self.model, legacy=False),
                keras_internals.compiled_loss(self.model, legacy=False),
            ):
                if container is not None and not container.built and labels is not None:
                    container.build(labels, predictions)

    def _build_by_update(self, inputs: Any, labels: Any, weights: Any) -> None:
        """Trace an update if metrics create their variables in the first one, as R2Score and F1Score do."""
        if all(map(keras_internals.is_metric_built, flatten_metrics(self.metrics))):
            return

        def on_replica(*tensors: Any) -> None:
            predictions = self.predictions(tensors[0], training=False)
            self.update_metrics(tensors[0], tensors[1], predictions, tensors[2])

        _trace_on_replicas(on_replica, inputs, labels, weights)

    def _build_returned_values(self, inputs: Any, labels: Any, weights: Any) -> None:
        """Create a variable for each number that `compute_metrics` returns and that is no metric of the model."""
        numbers: list[str] = []

        def on_replica(*tensors: Any) -> None:
            predictions = self.predictions(tensors[0], training=False)
            logs = self.model.compute_metrics(tensors[0], tensors[1], predictions, tensors[2])
            scalars = {name: value for name, value in logs.items() if not isinstance(value, Mapping)}
            numbers.extend(name for name, value in scalars.items() if tf.convert_to_tensor(value).shape.rank == 0)

        _trace_on_replicas(on_replica, inputs, labels, weights)
        known = {"loss", *self.metric_directions()}
        for name in dict.fromkeys(numbers):
            if name not in known:
                self._returned[name] = tf.Variable(
                    0.0,
                    trainable=False,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.MEAN,
                )

    def _build_tf_keras(self, inputs: Any, labels: Any) -> None:
        predictions = self._trace_outputs(inputs)
        if not self.model.compiled_loss.built:
            self.model.compiled_loss.build(predictions)
        metrics = self.model.compiled_metrics
        if labels is not None and not metrics.built:
            metrics.build(predictions, keras_internals.conform_labels(self.model, predictions, labels))

    def _trace_outputs(self, inputs: Any) -> Any:
        """Return the specs of the outputs for inputs of these specs."""
        traced = tf.function(lambda tensors: self.predictions(tensors, training=False), autograph=False)
        return traced.get_concrete_function(inputs).structured_outputs


def _trace_on_replicas(on_replica: Callable[..., Any], *specs: Any) -> None:
    strategy = tf.distribute.get_strategy()
    traced = tf.function(lambda *tensors: strategy.run(on_replica, args=tensors), autograph=False)
    traced.get_concrete_function(*specs)


def _names(names: Iterable[str] | None) -> set[str] | None:
    return set(names) if names else None


def _specs(tensors: Any) -> Any:
    return tf.nest.map_structure(lambda leaf: leaf if leaf is None else tf.TensorSpec(leaf.shape, leaf.dtype), tensors)

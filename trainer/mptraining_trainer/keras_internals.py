"""Private names of Keras 3, tf_keras and TensorFlow: a release may change each of them.

No other module of the trainer uses one. `tests/training/test_keras_internals.py` has a contract test for each function,
which `make test-all` also runs against `keras-nightly` and TensorFlow's newest release candidate. `legacy` is True for
objects of tf_keras.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorflow as tf

# Layers and tensors


def layers(model: Any) -> list[Any]:
    """Return the model and every layer inside it, nested ones included."""
    return list(model._flatten_layers())


def own_non_trainable_variables(layer: Any, *, legacy: bool) -> list[Any]:
    """Return the Keras variables that this layer itself created as not trainable; none of nested layers."""
    return list(getattr(layer, "_non_trainable_weights" if legacy else "_non_trainable_variables", ()))


def seed_generators(layer: Any) -> list[Any]:
    """Return the SeedGenerators of a Keras 3 layer, in lists and dicts too."""
    return list(layer._seed_generators)


def input_structure(model: Any, *, legacy: bool) -> Any:
    """Return a functional model's inputs as they were given: a tensor, list or dict; None for other models."""
    return getattr(model, "_nested_inputs" if legacy else "_inputs_struct", None)


def output_structure(model: Any, *, legacy: bool) -> Any:
    """Return a functional model's outputs as they were given: a tensor, list or dict; None for other models."""
    return getattr(model, "_nested_outputs" if legacy else "_outputs_struct", None)


def input_layer(tensor: Any) -> Any | None:
    """Return the layer whose output this symbolic tensor is; None for anything else."""
    return tensor._keras_history[0] if hasattr(tensor, "_keras_history") else None


def mask_of(tensor: Any) -> Any | None:
    """Return the mask that a layer gave its output."""
    return getattr(tensor, "_keras_mask", None)


def set_mask(tensor: Any, mask: Any) -> None:
    tensor._keras_mask = mask


def rename(model: Any, name: str, *, legacy: bool) -> None:
    """Give a built model another name, as nested models need different ones."""
    setattr(model, "_name" if legacy else "name", name)


class _LossesByReplica(threading.local):
    """The list that a Keras 3 layer keeps its `add_loss` tensors in, one for each replica.

    Replicas are threads that alternate at every all-reduce. A mask makes the compiled loss sum over the replicas before
    Keras reads the layers' losses; a single list has those of another replica by then.
    """

    def __init__(self) -> None:
        # Called once in each thread.
        self._losses: list[Any] = []

    def extend(self, losses: Iterable[Any]) -> None:
        self._losses.extend(losses)

    def clear(self) -> None:
        self._losses.clear()

    def __getitem__(self, index: slice) -> list[Any]:
        return self._losses[index]


def keep_losses_by_replica(model: Any) -> None:
    """Keep the `add_loss` tensors of a Keras 3 model's layers apart by thread."""
    for layer in layers(model):
        if not isinstance(layer._losses, _LossesByReplica):
            # Keras tracks what is assigned to an attribute.
            object.__setattr__(layer, "_losses", _LossesByReplica())


# Random numbers


def forget_global_generator() -> None:
    """Make the next use create Keras 3's global SeedGenerator again."""
    from keras.src.backend.common.global_state import set_global_attribute
    from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR

    set_global_attribute(GLOBAL_SEED_GENERATOR, None)


def global_generator() -> Any:
    """Return the SeedGenerator of Keras 3's layers without one; the first call creates it."""
    from keras.src.random.seed_generator import global_seed_generator

    return global_seed_generator()


def tf_keras_generator() -> Any:
    """Return the class in which tf_keras' layers keep a `tf.random.Generator`."""
    from tf_keras.src.backend import RandomGenerator

    return RandomGenerator


def generator_in(wrapper: Any) -> Any:
    """Return the `tf.random.Generator` of a `tf_keras_generator`; None if it draws without one."""
    wrapper._maybe_init()
    return wrapper._generator


# The compiled model


def is_compiled(model: Any, *, legacy: bool) -> bool:
    return bool(model._is_compiled if legacy else model.compiled)


def compiled_loss(model: Any, *, legacy: bool) -> Any | None:
    """Return the container of the compiled losses; None without a loss under Keras 3."""
    return model.compiled_loss if legacy else model._compile_loss


def compiled_metrics(model: Any, *, legacy: bool) -> Any | None:
    """Return the container of the compiled metrics; None without metrics under Keras 3."""
    return model.compiled_metrics if legacy else model._compile_metrics


def compiled_arguments(model: Any, *, legacy: bool) -> dict[str, Any]:
    """Return metrics, weighted metrics and loss weights as the program passed them to `compile`."""
    loss, metrics = compiled_loss(model, legacy=legacy), compiled_metrics(model, legacy=legacy)
    return {
        "loss_weights": getattr(loss, "_user_loss_weights", None),
        "metrics": getattr(metrics, "_user_metrics", None),
        "weighted_metrics": getattr(metrics, "_user_weighted_metrics", None),
    }


def losses_of_outputs(model: Any, *, legacy: bool) -> list[tuple[str, Any]]:
    """Return each compiled loss with the name of its output; empty before the container is built."""
    container = compiled_loss(model, legacy=legacy)
    if container is None or not container.built:
        return []
    if legacy:
        named = [(None, loss) for loss in tf.nest.flatten(container._losses)]
        names = list(container._output_names or ())
    else:
        # Keras names each of several losses by its output; unnamed outputs are in their order.
        named = [(entry.name, entry.loss) for entry in container._flat_losses or () if entry.loss is not None]
        names = list(getattr(model, "output_names", None) or ())
    places = names if len(names) == len(named) else [f"output_{number}" for number in range(len(named))]
    return [(name or output, loss) for (name, loss), output in zip(named, places, strict=True) if loss is not None]


def loss_arguments(loss: Any) -> Mapping[str, Any]:
    """Return the arguments that a `Loss` passes to its function."""
    arguments: Mapping[str, Any] = getattr(loss, "_fn_kwargs", {})
    return arguments


def takes_training(model: Any) -> bool:
    """Return whether a Keras 3 model's `call` has an argument `training`."""
    return bool(model._call_has_training_arg)


def total_loss(
    model: Any, inputs: Any, labels: Any, predictions: Any, weights: Any, *, training: bool, legacy: bool
) -> Any:
    """Return the model's loss with regularizers and `add_loss`, as its own `train_step` computes it."""
    if legacy:
        return model.compute_loss(inputs, labels, predictions, weights)
    # It calls an override of `compute_loss` with or without `training`, whichever that takes.
    return model._compute_loss(x=inputs, y=labels, y_pred=predictions, sample_weight=weights, training=training)


def loss_tracker(model: Any, *, legacy: bool) -> Any | None:
    """Return Keras' own mean of the total loss."""
    return getattr(model.compiled_loss, "_total_loss_mean", None) if legacy else model._loss_tracker


def output_loss_trackers(model: Any, *, legacy: bool) -> list[Any]:
    """Return Keras' means of the single outputs' losses."""
    if not legacy:
        return [] if model._compile_loss is None else list(model._compile_loss.metrics)
    trackers = tf.nest.flatten(getattr(model.compiled_loss, "_per_output_metrics", None))
    return [tracker for tracker in trackers if tracker is not None]


def build_symbolically(model: Any, batch: tuple[Any, Any, Any]) -> None:
    """Build a Keras 3 model with its losses and metrics from specs (inputs, labels, weights)."""
    model._symbolic_build(data_batch=batch)


def conform_labels(model: Any, predictions: Any, labels: Any) -> Any:
    """Return labels in the structure of the predictions, as tf_keras' compiled metrics are built with."""
    return model.compiled_metrics._conform_to_outputs(predictions, labels)


def update_metrics_by_weight(model: Any, labels: Any, predictions: Any, weights: Any, rows: Any) -> None:
    """Update the compiled metrics of tf_keras with a sample weight of 0 for padded rows: for static shapes."""
    container = model.compiled_metrics
    unweighted, weighted = container._metrics, container._weighted_metrics
    try:
        container._metrics = tf.nest.map_structure(lambda _metric: None, unweighted)
        container._weighted_metrics = unweighted
        container.update_state(labels, predictions, rows)
        container._weighted_metrics = weighted
        if weights is not None:
            rows = tf.nest.map_structure(lambda weight: tf.cast(weight, tf.float32) * rows, weights)
        container.update_state(labels, predictions, rows)
    finally:
        container._metrics, container._weighted_metrics = unweighted, weighted


def is_metric_built(metric: Any) -> bool:
    """Return whether the metric has its variables; some create them in their first update."""
    return bool(getattr(metric, "built", True) and getattr(metric, "_built", True))


def better_direction(metric: Any) -> str | None:
    """Return whether a higher (up) or a lower (down) result is better; None if Keras does not know."""
    direction: str | None = getattr(metric, "_direction", None)
    return direction


def class_weight_map(weights: Mapping[int, float], *, legacy: bool) -> Callable[..., Any]:
    """Return Keras' function from (inputs, labels) to (inputs, labels, weights). Raises ValueError."""
    if legacy:
        from tf_keras.src.engine.data_adapter import _make_class_weight_map_fn as make
    else:
        from keras.src.trainers.data_adapters.tf_dataset_adapter import make_class_weight_map_fn as make
    mapped: Callable[..., Any] = make(dict(weights))
    return mapped


def graph_model() -> Any:
    """Return the class that tf_keras makes the base of all models after `disable_eager_execution`."""
    from tf_keras.src.engine.training_v1 import Model

    return Model


# Attributes of a tf_keras model for its own `fit`.
FIT_COUNTERS = ("_train_counter", "_test_counter", "_predict_counter", "_steps_per_execution")


# Reduction of losses

# Returns the part of a batch that this thread computes; None outside of parts.
CurrentPart = Callable[[], Any | None]
# Returns the corrected loss of a part; arguments: the part, the values, the mask, the reduction, a function that
# returns the weights of the reduction, and Keras' reduction of given values.
Correct = Callable[[Any, Any, Any, Any, Callable[[Any], Any], Callable[[Any], Any]], Any]


def wrap_reductions(current_part: CurrentPart, correct: Correct, *, legacy: bool) -> None:
    """Reduce the losses of Keras 3 or tf_keras by `correct` in parts; a second call has no effect.

    Every `Loss` calls the wrapped functions, also one that a program's own step calls. Keras' own scaling by the number
    of replicas is off in parts.
    """
    if legacy:
        _wrap_tf_keras(current_part, correct)
    else:
        _wrap_keras_3(current_part, correct)


def _wrap_keras_3(current_part: CurrentPart, correct: Correct) -> None:
    from keras.src.losses import loss as module

    reduce = module.reduce_weighted_values
    if hasattr(reduce, "of_keras"):
        return

    def reduce_weighted_values(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: Any = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        def reduced(values: Any) -> Any:
            return reduce(values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype)

        def weights(loss: Any) -> Any:
            return module.apply_mask(sample_weight, mask, dtype=loss.dtype, reduction=reduction)

        part = current_part()
        return reduced(values) if part is None else correct(part, values, mask, reduction, weights, reduced)

    reduce_weighted_values.of_keras = reduce  # type: ignore[attr-defined]
    module.reduce_weighted_values = reduce_weighted_values
    for name in ("scale_loss_for_distribution", "unscale_loss_for_distribution"):
        setattr(module, name, _unless(current_part, getattr(module, name)))


def _wrap_tf_keras(current_part: CurrentPart, correct: Correct) -> None:
    from tf_keras.src import losses
    from tf_keras.src.utils import losses_utils as module

    reduce, apply_mask = module.compute_weighted_loss, module.apply_valid_mask
    if hasattr(reduce, "of_keras"):
        return
    # tf_keras applies the mask before it reduces.
    applied = threading.local()

    def apply_valid_mask(values: Any, weights: Any, mask: Any, reduction: Any) -> Any:
        applied.mask = None if current_part() is None else mask
        return apply_mask(values, weights, mask, reduction)

    def compute_weighted_loss(
        values: Any, sample_weight: Any = None, reduction: Any = "sum_over_batch_size", name: Any = None
    ) -> Any:
        def reduced(values: Any) -> Any:
            return reduce(values, sample_weight=sample_weight, reduction=reduction, name=name)

        part = current_part()
        if part is None:
            return reduced(values)
        mask, applied.mask = getattr(applied, "mask", None), None
        return correct(part, values, mask, reduction, lambda loss: None, reduced)

    compute_weighted_loss.of_keras = reduce  # type: ignore[attr-defined]
    module.compute_weighted_loss, module.apply_valid_mask = compute_weighted_loss, apply_valid_mask
    module.scale_loss_for_distribution = _unless(current_part, module.scale_loss_for_distribution)
    original = losses.Loss._get_reduction

    def _get_reduction(loss: Any) -> Any:
        # tf_keras rejects the default reduction outside of `compile`, since it cannot know the user's mean.
        if current_part() is not None and loss.reduction in ("auto", "sum_over_batch_size"):
            return "sum_over_batch_size"
        return original(loss)

    losses.Loss._get_reduction = _get_reduction
    _wrap_reported_losses(current_part)


def _wrap_reported_losses(current_part: CurrentPart) -> None:
    """Make tf_keras report the training loss: with reduction `sum` it reports the loss times the number of replicas."""
    from tf_keras.src.engine.compile_utils import LossesContainer

    call = LossesContainer.__call__

    def reported(container: Any, *arguments: Any, **named: Any) -> Any:
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if current_part() is None or replicas == 1 or not container.built:
            return call(container, *arguments, **named)
        sizes: list[Any] = []
        total = container._total_loss_mean
        with ExitStack() as ends:
            ends.enter_context(replace_update(total, lambda _update, _value, weight: sizes.append(weight)))
            for loss, mean in zip(container._losses, container._per_output_metrics, strict=True):
                if mean is not None and loss.reduction == "sum":
                    ends.enter_context(
                        replace_update(
                            mean, lambda update, value, weight: update(value / replicas, sample_weight=weight)
                        )
                    )
            loss = call(container, *arguments, **named)
        if sizes:
            total.update_state(loss, sample_weight=sizes[0])
        return loss

    LossesContainer.__call__ = reported


def _unless(current_part: CurrentPart, scale: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: scale(value) if current_part() is None else value


@contextmanager
def replace_update(metric: Any, update: Callable[[Callable[..., Any], Any, Any], Any]) -> Iterator[None]:
    """In the block, pass calls of `metric.update_state` on as `update(update_state, values, sample_weight)`."""
    before = metric.update_state
    object.__setattr__(metric, "update_state", lambda values, sample_weight=None: update(before, values, sample_weight))
    try:
        yield
    finally:
        object.__setattr__(metric, "update_state", before)


# Optimizers


def rate_or_schedule(optimizer: Any) -> Any:
    """Return the variable of a constant learning rate, or the schedule; `learning_rate` is a schedule's present value.

    None for an optimizer without one.
    """
    return getattr(optimizer, "_learning_rate", None)


def set_schedule(optimizer: Any, schedule: Any, *, legacy: bool) -> None:
    # tf_keras' setter does not create the variable of a schedule's present value.
    optimizer.learning_rate = optimizer._build_learning_rate(schedule) if legacy else schedule


def accumulated_iterations(optimizer: Any) -> Any:
    """Return the variable that counts the calls of a Keras 3 optimizer; `iterations` counts accumulated ones as one."""
    return optimizer._iterations


def trainable_variables(optimizer: Any) -> list[Any]:
    """Return the Keras variables that a Keras 3 optimizer was built with."""
    return list(optimizer._trainable_variables)


def moving_averages(optimizer: Any) -> list[tuple[Any, Any]]:
    """Return each variable of a Keras 3 optimizer with its moving average, None without one."""
    return list(zip(optimizer._trainable_variables, optimizer._model_variables_moving_average, strict=True))


def take_summed_gradients(optimizer: Any, *, legacy: bool) -> None:
    """Make an optimizer take its gradients as summed over the replicas.

    Keras 3 clips before it sums, and an `apply_gradients` of the user's need not pass tf_keras' argument on.
    """
    setattr(optimizer, "aggregate_gradients" if legacy else "_all_reduce_sum_gradients", list)


def count_nadam_by_variable(optimizer: Any) -> None:
    """Give each variable of tf_keras' Nadam the count that it has in `fit`, which traces its step twice.

    Nadam's `update_step` compares a Python counter, which every trace and every replica increments, with the
    iterations: without this function, weights depend on the number of traces. No effect on other optimizers.
    """
    if not hasattr(optimizer, "_u_product_counter"):
        return
    update = optimizer.update_step

    def update_step(gradient: Any, variable: Any) -> None:
        optimizer._u_product_counter = (
            1 + len(optimizer._index_dict) + optimizer._index_dict[optimizer._var_key(variable)]
        )
        update(gradient, variable)

    optimizer.update_step = update_step


# Callbacks

# State that a callback needs after a restart: attributes that are the same in Keras 3.15 and tf_keras 2.21, or that
# exist in one of them. LearningRateScheduler and ReduceLROnPlateau also change the learning rate, which is saved
# separately; a CSVLogger's state is its file; the best weights of EarlyStopping are arrays.
CALLBACK_STATE: Mapping[str, tuple[str, ...]] = {
    "EarlyStopping": ("best", "best_epoch", "wait", "stopped_epoch"),
    "LearningRateScheduler": (),
    "ReduceLROnPlateau": ("best", "wait", "cooldown_counter"),
    "ModelCheckpoint": (
        "best",
        "epochs_since_last_save",
        "_current_epoch",
        "_batches_seen_since_last_saving",
        "_last_batch_seen",
    ),
    "TensorBoard": ("_global_train_batch", "_global_test_batch"),
    "CSVLogger": (),
    "LambdaCallback": (),
    # The optimizer holds the average itself.
    "SwapEMAWeights": ("_ema_weights_in_model",),
    "RemoteMonitor": (),
}
# Attributes of the base class, which every callback has.
CALLBACK_BASE = frozenset({"validation_data", "model", "_model", "params", "_chief_worker_only", "_supports_tf_logs"})


def traces_batches(tensorboard: Any) -> bool:
    """Return whether a TensorBoard callback profiles batches."""
    return bool(getattr(tensorboard, "_should_trace", False))


def stop_tracing(callback: Any) -> None:
    """End the profile of a TensorBoard callback without saving it: a process has one profiler only."""
    if getattr(callback, "_is_tracing", False):
        callback._stop_profiler(save=False)


def writers(callback: Any) -> list[Any]:
    """Return the open summary writers of a TensorBoard callback."""
    return list(getattr(callback, "_writers", {}).values())


def set_training_step(tensorboard: Any, model: Any, step: int) -> None:
    """Set the step of a TensorBoard callback: Keras 3 counts its own calls, tf_keras reads the model's counter."""
    tensorboard._global_train_batch = step
    counter = getattr(model, "_train_counter", None)
    if counter is not None and hasattr(counter, "assign"):
        counter.assign(step)


# TensorFlow


def set_worker_key(key: str, value: str) -> None:
    """Store a value for the other workers of MultiWorkerMirroredStrategy. Raises tf.errors.OpError."""
    from tensorflow.python.eager import context

    context.context().set_config_key_value(key, value)


def wait_for_worker_key(key: str, seconds: float) -> None:
    """Wait until a worker has stored the key. Raises tf.errors.OpError after this time."""
    from tensorflow.python.eager import context

    context.context().get_config_key_value(key, int(seconds * 1000))

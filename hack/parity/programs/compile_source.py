"""The source of the arguments of `compile` and `fit`: losses, metrics, optimizers, callbacks, with custom ones."""

from __future__ import annotations

from hack.parity.programs.program import LABEL, SECOND, Program

_RATES = {**dict.fromkeys(("SGD", "Momentum", "Adagrad", "Ftrl", "Own", "Multi"), 0.05), "Adadelta": 0.5, "Lion": 0.001}


def definitions(p: Program) -> str:
    parts = [text for name, text in _CALLBACK_CLASSES.items() if name in p.callbacks]
    if p.optimizer == "Own":
        parts.append(_OPTIMIZER)
    if "own_nan" in (*p.metrics, *p.weighted_metrics):
        parts.append("def undefined(y_true, y_pred):\n    return 0.0 * tf.cast(y_pred[..., 0], tf.float32) / 0.0")
    if "own_metric" in (*p.metrics, *p.weighted_metrics):
        parts.append(_METRIC)
    # Keras 3 casts labels for a custom function, tf_keras only if they are floating.
    true = "tf.cast(y_true, y_pred.dtype)" if p.legacy and p.dtype != "float32" else "y_true"
    row = f"tf.reduce_mean(tf.square({true} - y_pred), axis=-1)"
    if p.task in ("classes", "tokens"):
        row = "keras.losses.sparse_categorical_crossentropy(y_true, y_pred)"
    elif p.loss == "categorical_crossentropy":
        row = "keras.losses.categorical_crossentropy(y_true, y_pred)"
    if p.loss_form == "function":
        parts.append(f"def own_loss(y_true, y_pred):\n    return {row}")
    elif p.loss_form == "scalar_function":
        parts.append(f"def own_loss(y_true, y_pred):\n    return tf.reduce_mean({row})")
    elif p.loss_form.startswith("subclass"):
        arguments = ", **kwargs" if p.loss_form != "subclass_bare" else ""
        passed = "**kwargs" if arguments else ""
        config = (
            '\n\n    def get_config(self):\n        return {**super().get_config(), "alpha": self.alpha}'
            if p.loss_form == "subclass"
            else ""
        )
        parts.append(
            "class OwnLoss(keras.losses.Loss):\n"
            f"    def __init__(self, alpha=1.0{arguments}):\n"
            f"        super().__init__({passed})\n"
            "        self.alpha = alpha\n"
            "\n"
            "    def call(self, y_true, y_pred):\n"
            f"        return self.alpha * {_cast(row)}{config}"
        )
    if "own_function" in (*p.metrics, *p.weighted_metrics):
        parts.append(
            "def closeness(y_true, y_pred):\n"
            "    y_true, y_pred = tf.cast(y_true, tf.float32), tf.cast(y_pred, tf.float32)\n"
            "    rows = tf.reshape(y_pred, (tf.shape(y_pred)[0], -1))\n"
            "    return rows[:, 0] + tf.reduce_mean(tf.reshape(y_true, (tf.shape(y_true)[0], -1)), axis=1)"
        )
    return "\n\n\n".join(parts)


def _cast(row: str) -> str:
    return row.replace("y_true - y_pred", "tf.cast(y_true, y_pred.dtype) - y_pred") if "square" in row else row


def _loss(p: Program) -> str:
    if p.loss_form == "string":
        return f'"{p.loss}"'
    if p.loss_form == "keras_function":
        return f"keras.losses.{p.loss}"
    if p.loss_form in ("function", "scalar_function"):
        return "own_loss"
    arguments = ["from_logits=True"] if p.head == "logits" else []
    if p.loss == "huber":
        arguments += ["delta=0.5"]
    if p.reduction != "default":
        arguments += [f'reduction="{p.reduction}"']
    if p.loss_form == "class":
        return f"keras.losses.{_class_name(p.loss)}({', '.join(arguments)})"
    return f"OwnLoss({', '.join(['alpha=5.0', *arguments])})"


def _class_name(loss: str) -> str:
    return "KLDivergence" if loss == "kl_divergence" else loss.title().replace("_", "")


def _metric(name: str) -> str:
    custom = {
        "own_function": "closeness",
        "own_metric": "Distance(2.0)",
        "own_nan": "undefined",
        "mean_absolute_error": "keras.metrics.mean_absolute_error",
    }
    if name in custom:
        return custom[name]
    if name == "SparseTopKCategoricalAccuracy":
        return "keras.metrics.SparseTopKCategoricalAccuracy(k=2)"
    if name == "TopKCategoricalAccuracy":
        return "keras.metrics.TopKCategoricalAccuracy(k=2)"
    return f"keras.metrics.{name}()" if name[0].isupper() else f'"{name}"'


def _metrics(names: tuple[str, ...]) -> str:
    return f"[{', '.join(map(_metric, names))}]"


def optimizer(p: Program) -> list[str]:
    # At the full rate the loss of a sum, or of a layer with the 144 numbers of an image, grows, and rounding errors
    # with it.
    rate = _RATES.get(p.optimizer, 0.01) / (10 if p.inputs == "image" else 1) / (20 if p.reduction == "sum" else 1)
    schedule = {
        "none": f"{rate}",
        "exponential": f"keras.optimizers.schedules.ExponentialDecay({rate}, 2, 0.7)",
        "piecewise": f"keras.optimizers.schedules.PiecewiseConstantDecay([1, 3], [{rate}, {rate / 2}, {rate / 4}])",
        "cosine": f"keras.optimizers.schedules.CosineDecay({rate}, 6)",
    }[p.schedule]
    arguments = [f"learning_rate={schedule}"]
    arguments += ["momentum=0.9"] if p.optimizer == "Momentum" else []
    arguments += ["weight_decay=0.02"] if p.weight_decay else []
    if p.clipping != "none":
        arguments += [f"{p.clipping}={0.05 if p.clipping == 'clipvalue' else 0.3}"]
    if p.ema != "none":
        arguments += ["use_ema=True", "ema_momentum=0.8"]
        arguments += ["ema_overwrite_frequency=2"] if p.ema == "overwrite" else []
    arguments += ["loss_scale_factor=1024.0"] if p.loss_scale else []
    made = f"keras.optimizers.{'SGD' if p.optimizer == 'Momentum' else p.optimizer}({', '.join(arguments)})"
    if p.optimizer == "Own":
        made = f"Own({', '.join(arguments)})"
    elif p.optimizer == "Multi":
        scale = ", loss_scale_factor=1024.0" if p.loss_scale else ""
        inner = [argument for argument in arguments if not argument.startswith("loss_scale")]
        made = f"keras.optimizers.SGD({', '.join(inner)})"
        chosen = '{".*bias": keras.optimizers.RMSprop(0.01)}'
        made = f"keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap({made}, {chosen}){scale})"
    excluded = ['optimizer.exclude_from_weight_decay(var_names=["bias"])'] if p.decay_excludes else []
    return [f"optimizer = {made}", *excluded]


def compiled(p: Program) -> list[str]:
    arguments = ["optimizer=optimizer"]
    if p.task == "unlabelled":
        pass
    elif p.outputs == "without_loss":
        arguments.append(f'loss={{"{LABEL}": {_loss(p)}}}')
        arguments += [f'metrics={{"{LABEL}": {_metrics(p.metrics)}}}'] if p.metrics else []
        arguments += [f'weighted_metrics={{"{LABEL}": {_metrics(p.weighted_metrics)}}}'] if p.weighted_metrics else []
    elif p.outputs == "one":
        arguments.append(f"loss={_loss(p)}")
        arguments += [f"metrics={_metrics(p.metrics)}"] if p.metrics else []
        arguments += [f"weighted_metrics={_metrics(p.weighted_metrics)}"] if p.weighted_metrics else []
    else:
        by_name = p.outputs in ("named", "dict")

        def pair(first: str, second: str) -> str:
            return f'{{"{LABEL}": {first}, "{SECOND}": {second}}}' if by_name else f"[{first}, {second}]"

        arguments.append("loss=" + pair(_loss(p), '"mean_squared_error"'))
        arguments += ["loss_weights=" + pair("0.7", "2.0")] if p.loss_weights else []
        arguments += ["metrics=" + pair(_metrics(p.metrics), '["mae"]')] if p.metrics else []
        arguments += ["weighted_metrics=" + pair(_metrics(p.weighted_metrics), '["mse"]')] if p.weighted_metrics else []
    if not p.legacy:
        # XLA has its own order of additions; compiling takes longer than all the rest.
        arguments.append("jit_compile=False")
    return [f"model.compile({', '.join(arguments)})"]


def callbacks(p: Program) -> list[str]:
    made = {
        "observer": "Observer()",
        "lambda": "keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None)",
        "early_stopping": 'keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=0.02, '
        "restore_best_weights=True)",
        "reduce_rate": 'keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.3, patience=1, min_delta=0.05)',
        "scheduler": "keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.8)",
        "csv": 'keras.callbacks.CSVLogger("log.csv")',
        "checkpoint": 'keras.callbacks.ModelCheckpoint("best.weights.h5", monitor="val_loss", save_best_only=True, '
        "save_weights_only=True)",
        "terminate_on_nan": "keras.callbacks.TerminateOnNaN()",
        "own_stopper": "Stopper()",
        "batch_rate": "BatchRate()",
    }
    return [f"    {made[name]}," for name in p.callbacks]


_METRIC = """
class Distance(keras.metrics.Metric):
    def __init__(self, power, name="distance"):
        super().__init__(name=name)
        self.power = power
        self.total = self.add_weight(name="total", initializer="zeros")
        self.seen = self.add_weight(name="seen", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true = tf.cast(y_true, tf.float32)
        rows = tf.reshape(tf.abs(tf.cast(y_pred, tf.float32)), (tf.shape(y_pred)[0], -1)) ** self.power
        rows = tf.reduce_mean(rows, axis=1) + tf.reduce_mean(tf.reshape(y_true, (tf.shape(y_true)[0], -1)), axis=1)
        weights = tf.ones_like(rows)
        if sample_weight is not None:
            sample_weight = tf.cast(sample_weight, tf.float32)
            weights = tf.reduce_mean(tf.reshape(sample_weight, (tf.shape(sample_weight)[0], -1)), axis=1)
        self.total.assign_add(tf.reduce_sum(rows * weights))
        self.seen.assign_add(tf.reduce_sum(weights))

    def result(self):
        return self.total / self.seen

    def reset_state(self):
        self.total.assign(0.0)
        self.seen.assign(0.0)
""".strip()

_OPTIMIZER = """
class Own(keras.optimizers.SGD):
    def apply_gradients(self, grads_and_vars, name=None):
        return super().apply_gradients([(0.5 * tf.convert_to_tensor(g), v) for g, v in grads_and_vars if g is not None])

    def finalize_variable_values(self, var_list):
        super().finalize_variable_values(var_list)
        for variable in var_list:
            variable.assign(0.9 * variable)
""".strip()

_CALLBACK_CLASSES = {
    "observer": """
class Observer(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.seen = [*getattr(self, "seen", []), sorted(logs)]
""".strip(),
    "batch_rate": """
class BatchRate(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        self.model.optimizer.learning_rate = 0.02 / self.batches
""".strip(),
    "own_stopper": """
class Stopper(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            self.model.stop_training = True
""".strip(),
}

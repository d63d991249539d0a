"""A Program as runnable Python source: `arrays`, `split`, `build` and a plain `model.fit`.

The same text is what plain Keras and the trainer run, and what is printed for a program that differs.
"""

from __future__ import annotations

from textwrap import indent

from parity.program import Program

# A name of each kind of feature; labels are also the names of outputs.
LABEL, SECOND, WEIGHT = "label", "second", "weight"
SEED = 7
TOKENS, WIDTH, CLASSES = 5, 6, 3
CLASS_WEIGHT = {0: 1.0, 1: 2.5, 2: 0.5}

_CLASSES = {
    "mean_squared_error": "MeanSquaredError",
    "mean_absolute_error": "MeanAbsoluteError",
    "huber": "Huber",
    "log_cosh": "LogCosh",
    "poisson": "Poisson",
    "mean_squared_logarithmic_error": "MeanSquaredLogarithmicError",
    "mean_absolute_percentage_error": "MeanAbsolutePercentageError",
    "cosine_similarity": "CosineSimilarity",
    "binary_crossentropy": "BinaryCrossentropy",
    "binary_focal_crossentropy": "BinaryFocalCrossentropy",
    "hinge": "Hinge",
    "squared_hinge": "SquaredHinge",
    "sparse_categorical_crossentropy": "SparseCategoricalCrossentropy",
    "categorical_crossentropy": "CategoricalCrossentropy",
    "kl_divergence": "KLDivergence",
    "categorical_hinge": "CategoricalHinge",
}
_RATES = {
    "SGD": 0.05,
    "Momentum": 0.05,
    "Adagrad": 0.05,
    "Adadelta": 0.5,
    "Ftrl": 0.05,
    "Lion": 0.001,
}


def source(program: Program) -> str:
    """Python source that `python FILE` runs as plain Keras."""
    parts = [_head(program), _arrays(program), _split(program)]
    parts += [text for text in (_classes(program), _functions(program)) if text]
    parts += [_build(program), _fit(program)]
    return "\n\n\n".join(part.strip("\n") for part in parts) + "\n"


def _head(p: Program) -> str:
    said = f'"""Trained by plain Keras as it stands here. parity: {p.to_json()}"""'.replace("\\", "")
    return f"{said}\n\nimport numpy as np\nimport tensorflow as tf\nimport {'tf_keras as keras' if p.legacy else 'keras'}"


# Data


def _arrays(p: Program) -> str:
    lines = ["random = np.random.default_rng(seed)", "found = {}"]
    if p.inputs == "vector":
        lines += [f'found["x"] = x = random.normal(size=(rows, {WIDTH})).astype("float32")', "row = x"]
    elif p.inputs == "image":
        lines += [
            'found["x"] = x = random.integers(0, 256, size=(rows, 6, 6, 1)).astype("uint8")',
            "row = x.reshape(rows, -1)[:, :6] / 128.0 - 1.0",
        ]
    elif p.inputs in ("tokens", "tokens_lstm"):
        lines += [
            f"lengths = random.integers(1, {TOKENS} + 1, size=rows)",
            f"x = random.integers(1, 10, size=(rows, {TOKENS}))",
            f"x[np.arange({TOKENS})[None] >= lengths[:, None]] = 0",
            'found["x"] = x.astype("int64")',
            "row = (x - 4.5) / 4.5",
        ]
    elif p.inputs == "sequence":
        lines += [
            f"lengths = random.integers(1, {TOKENS} + 1, size=rows)",
            f'x = random.normal(size=(rows, {TOKENS}, 4)).astype("float32")',
            f"x[np.arange({TOKENS})[None] >= lengths[:, None]] = 0.0",
            'found["x"] = x',
            "row = x.sum(axis=2)",
        ]
    else:
        lines += [
            'found["a"] = a = random.normal(size=(rows, 4)).astype("float32")',
            'found["b"] = b = random.normal(size=(rows, 3)).astype("float32")',
            "row = np.concatenate([a, b], axis=1)",
        ]
    lines += [f'found["{LABEL}"] = {_label(p)}']
    if p.second_task:
        lines += [f'found["{SECOND}"] = row[:, 1:2].astype("float32") * 0.5 + 0.2']
    if p.sample_weight == "example":
        lines += [f'found["{WEIGHT}"] = random.uniform(0.2, 2.0, size=rows).astype("float32")']
    elif p.sample_weight == "token":
        lines += [f'found["{WEIGHT}"] = random.uniform(0.2, 2.0, size=(rows, {TOKENS})).astype("float32")']
    lines += ["return found"]
    return "def arrays(rows, seed):\n" + indent("\n".join(lines), "    ")


def _label(p: Program) -> str:
    if p.task == "regression":
        positive = p.dtype == "uint8" or p.loss in (
            "poisson",
            "mean_squared_logarithmic_error",
            "mean_absolute_percentage_error",
        )
        values = "np.abs(row[:, :1] * 2.0) + 1.0" if positive else "row[:, :1] * 1.5 - 0.5"
        number = f"({values})" if p.dtype == "float32" else f"np.round({values})"
        return f'{number}.astype("{p.dtype}"){_rank(p)}'
    if p.task == "vector":
        return 'np.stack([row[:, 0], row[:, 1] + 0.5, row[:, 0] - row[:, 2]], axis=1).astype("float32")'
    if p.task == "binary":
        return f'(row[:, :1] + 0.3 * row[:, 1:2] > 0).astype("{p.dtype}"){_rank(p)}'
    if p.task == "classes":
        return f'row[:, :{CLASSES}].argmax(axis=1)[:, None].astype("{p.dtype}"){_rank(p)}'
    if p.task == "onehot":
        return f'np.eye({CLASSES})[row[:, :{CLASSES}].argmax(axis=1)].astype("float32")'
    if p.task == "tokens":
        return f'random.integers(0, {CLASSES}, size=(rows, {TOKENS})).astype("{p.dtype}")'
    if p.dtype == "uint8":
        return "255 - x"
    return '(1.0 - x / 255.0).astype("float32")'


def _rank(p: Program) -> str:
    return "[:, 0]" if p.rank == "B" else ""


def _split(p: Program) -> str:
    inputs = '{"a": found["a"], "b": found["b"]}' if p.inputs == "several" else 'found["x"]'
    if p.outputs == "one":
        labels = f'found["{LABEL}"]'
    elif p.outputs == "list":
        labels = f'[found["{LABEL}"], found["{SECOND}"]]'
    else:
        labels = f'{{"{LABEL}": found["{LABEL}"], "{SECOND}": found["{SECOND}"]}}'
    weights = "" if p.sample_weight == "none" else f', found["{WEIGHT}"]'
    return f"def split(found):\n    return {inputs}, {labels}{weights}"


# The model


def _body(p: Program) -> list[str]:
    regularizer = ', kernel_regularizer=keras.regularizers.L2(0.01)' if "l2" in p.extras else ""
    regularizer += ', activity_regularizer=keras.regularizers.L2(0.01)' if "activity" in p.extras else ""
    dense = f'keras.layers.Dense(8, activation="tanh"{regularizer})'
    if p.inputs == "image":
        layers = [
            "keras.layers.Rescaling(1 / 255)",
            f'keras.layers.Conv2D(4, 3, padding="same", activation="tanh"{regularizer})',
        ]
    elif p.inputs in ("tokens", "tokens_lstm"):
        layers = ["keras.layers.Embedding(10, 6, mask_zero=True)", dense]
    elif p.inputs == "sequence":
        layers = ["keras.layers.Masking(0.0)", dense]
    else:
        layers = [dense]
    if p.inputs == "tokens_lstm":
        layers.append(f"keras.layers.LSTM(5, return_sequences={p.task == 'tokens'})")
    extra = {
        "batchnorm": "keras.layers.BatchNormalization(momentum=0.8)",
        "dropout": "keras.layers.Dropout(0.3, seed=5)",
        "add_loss": "Penalty()",
        "frozen": 'keras.layers.Dense(8, activation="tanh", trainable=False)',
        "stateful": "Counter()",
    }
    layers += [text for name, text in extra.items() if name in p.extras]
    if p.task not in ("tokens", "image"):
        if p.inputs in ("tokens", "sequence"):
            layers.append("keras.layers.GlobalAveragePooling1D()")
        elif p.inputs == "image":
            layers.append("keras.layers.Flatten()")
    return layers


def _head_layers(p: Program) -> list[str]:
    float32 = '' if p.policy == "float32" else ', dtype="float32"'
    name = f', name="{LABEL}"' if p.outputs == "named" else ""
    activation = ""
    if p.head != "logits":
        found = {"binary": "sigmoid", "classes": "softmax", "onehot": "softmax", "tokens": "softmax"}.get(p.task)
        if p.loss in ("hinge", "squared_hinge"):
            found = "tanh"
        if p.loss in ("poisson", "mean_squared_logarithmic_error"):
            found = "softplus"
        activation = f', activation="{found}"' if found else ""
    if p.task == "image":
        return [f'keras.layers.Conv2D(1, 3, padding="same"{activation}{float32})']
    units = {"regression": 1, "binary": 1}.get(p.task, CLASSES)
    if p.head == "rank1":
        return [
            f"keras.layers.Dense({units}{activation}{float32})",
            f"keras.layers.Reshape((){float32}{name})",
        ]
    return [f"keras.layers.Dense({units}{activation}{float32}{name})"]


def _shape(p: Program) -> str:
    return {
        "vector": f"({WIDTH},)",
        "image": "(6, 6, 1)",
        "tokens": f"({TOKENS},)",
        "tokens_lstm": f"({TOKENS},)",
        "sequence": f"({TOKENS}, 4)",
    }[p.inputs]


def _input(p: Program) -> str:
    dtype = {"image": ', dtype="uint8"', "tokens": ', dtype="int64"', "tokens_lstm": ', dtype="int64"'}
    return f'keras.Input({_shape(p)}, name="x"{dtype.get(p.inputs, "")})'


def _has_class(p: Program) -> bool:
    return p.override != "none" or p.form == "subclass"


def _model(p: Program) -> list[str]:
    body, head = _body(p), _head_layers(p)
    if p.form == "subclass":
        zeros = (
            '{"a": tf.zeros((1, 4)), "b": tf.zeros((1, 3))}'
            if p.inputs == "several"
            else f"tf.zeros((1, {_shape(p)[1:-1].rstrip(',')}), tf.{_zeros_dtype(p)})"
        )
        return ["model = Net()", f"model({zeros})"]
    kind = "Net" if _has_class(p) else {"sequential": "keras.Sequential", "functional": "keras.Model"}[p.form]
    if p.form == "sequential":
        listed = "".join(f"    {layer},\n" for layer in [_input(p), *body, *head])
        return f"model = {kind}([\n{listed}])".splitlines()
    lines = []
    if p.inputs == "several":
        lines += [
            'inputs = {"a": keras.Input((4,), name="a"), "b": keras.Input((3,), name="b")}',
            'x = keras.layers.Concatenate()([keras.layers.Dense(4)(inputs["a"]), inputs["b"]])',
        ]
    else:
        lines += [f"inputs = x = {_input(p)}"]
    lines += [f"x = {layer}(x)" for layer in body]
    lines += ["first = x", *(f"first = {layer}(first)" for layer in head)]
    if p.outputs == "one":
        return [*lines, f"model = {kind}(inputs, first)"]
    float32 = '' if p.policy == "float32" else ', dtype="float32"'
    name = f', name="{SECOND}"' if p.outputs == "named" else ""
    outputs = f'{{"{LABEL}": first, "{SECOND}": other}}' if p.outputs == "dict" else "[first, other]"
    return [*lines, f"other = keras.layers.Dense(1{float32}{name})(x)", f"model = {kind}(inputs, {outputs})"]


def _zeros_dtype(p: Program) -> str:
    return {"image": "uint8", "tokens": "int64", "tokens_lstm": "int64"}.get(p.inputs, "float32")


def _classes(p: Program) -> str:
    found = []
    if "add_loss" in p.extras:
        found.append(
            "class Penalty(keras.layers.Layer):\n"
            "    def call(self, x):\n"
            "        self.add_loss(0.05 * tf.reduce_mean(tf.square(tf.cast(x, tf.float32))))\n"
            "        return x\n"
            "\n"
            "    def compute_mask(self, inputs, mask=None):\n"
            "        return mask"
        )
    if "stateful" in p.extras:
        found.append(
            "class Counter(keras.layers.Layer):\n"
            "    def build(self, shape):\n"
            '        self.seen = self.add_weight(name="seen", shape=(), initializer="zeros", trainable=False,\n'
            f'                                    dtype="{"int64" if not p.legacy else "float32"}")\n'
            "\n"
            "    def call(self, x):\n"
            "        self.seen.assign_add(tf.ones((), self.seen.dtype))\n"
            "        return x\n"
            "\n"
            "    def compute_mask(self, inputs, mask=None):\n"
            "        return mask"
        )
    if _has_class(p):
        found.append(_net(p))
    found += [text for name, text in _CALLBACK_CLASSES.items() if name in p.callbacks]
    if "own_metric" in (*p.metrics, *p.weighted_metrics):
        found.append(_METRIC)
    if "own_metric_without_weight" in (*p.metrics, *p.weighted_metrics):
        found.append(_METRIC_WITHOUT_WEIGHT)
    return "\n\n\n".join(found)


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

_METRIC_WITHOUT_WEIGHT = """
class Largest(keras.metrics.Metric):
    def __init__(self, name="largest"):
        super().__init__(name=name)
        self.largest = self.add_weight(name="largest", initializer="zeros")

    def update_state(self, y_true, y_pred):
        self.largest.assign(tf.maximum(self.largest, tf.reduce_max(tf.abs(tf.cast(y_pred, tf.float32)))))

    def result(self):
        return self.largest

    def reset_state(self):
        self.largest.assign(0.0)
""".strip()

_CALLBACK_CLASSES = {
    "observer": """
class Observer(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.seen = [*getattr(self, "seen", []), sorted(logs)]
""".strip(),
    "own_stopper": """
class Stopper(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            self.model.stop_training = True
""".strip(),
}


def _net(p: Program) -> str:
    base = "keras.Sequential" if p.form == "sequential" else "keras.Model"
    lines = [f"class Net({base}):"]
    if p.form == "subclass":
        body, head = _body(p), _head_layers(p)
        several = p.inputs == "several"
        lines += ["    def __init__(self):", "        super().__init__()"]
        lines += ["        self.a = keras.layers.Dense(4)"] if several else []
        lines += [f"        self.body_{number} = {layer}" for number, layer in enumerate(body)]
        lines += [f"        self.head_{number} = {layer}" for number, layer in enumerate(head)]
        if p.outputs != "one":
            float32 = '' if p.policy == "float32" else ', dtype="float32"'
            lines += [f"        self.other = keras.layers.Dense(1{float32})"]
        lines += ["", "    def call(self, inputs):"]
        start = 'keras.layers.concatenate([self.a(inputs["a"]), TAKEN])'
        second = 'tf.cast(inputs["b"], self.compute_dtype)'
        lines += [f"        x = {start.replace('TAKEN', second)}" if several else "        x = inputs"]
        lines += [f"        x = self.body_{number}(x)" for number in range(len(body))]
        lines += ["        first = x", *(f"        first = self.head_{number}(first)" for number in range(len(head)))]
        returned = {
            "one": "first",
            "list": "[first, self.other(x)]",
            "dict": f'{{"{LABEL}": first, "{SECOND}": self.other(x)}}',
        }[p.outputs]
        lines += [f"        return {returned}"]
    methods = {
        "none": "",
        "compute_loss": _COMPUTE_LOSS,
        "compute_loss_super": _COMPUTE_LOSS_SUPER,
        "compute_metrics": _COMPUTE_METRICS,
        "train_step": _TRAIN_STEP,
        "test_step": _TEST_STEP,
        "both_steps": _TRAIN_STEP + "\n\n" + _TEST_STEP,
    }[p.override]
    if methods:
        if len(lines) > 1:
            lines.append("")
        scaled = "self.optimizer.scale_loss(loss)" if p.policy == "mixed_float16" else "loss"
        text = methods.replace("UNPACK", "keras.utils.unpack_x_y_sample_weight").replace("SCALED", f"scaled = {scaled}")
        if p.legacy:
            text = text.replace("sample_weight=None, training=True):", "sample_weight=None):")
            text = text.replace(", training=training)", ")")
        lines.append(indent(text, "    "))
    return "\n".join(lines)


_COMPUTE_LOSS = """
def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
    y = tf.reshape(tf.cast(y, tf.float32), (tf.shape(y)[0], -1))
    p = tf.reshape(tf.cast(y_pred, tf.float32), (tf.shape(y_pred)[0], -1))
    return tf.reduce_mean(tf.square(tf.reduce_mean(y, axis=1) - tf.reduce_mean(p, axis=1)))
""".strip()
_COMPUTE_LOSS_SUPER = """
def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
    return 0.5 * super().compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)
""".strip()
_COMPUTE_METRICS = """
def compute_metrics(self, x, y, y_pred, sample_weight=None):
    found = super().compute_metrics(x, y, y_pred, sample_weight)
    return {**found, "constant": tf.constant(2.0)}
""".strip()
_TRAIN_STEP = """
def train_step(self, data):
    x, y, w = UNPACK(data)
    with tf.GradientTape() as tape:
        y_pred = self(x, training=True)
        loss = 2.0 * self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=w)
        SCALED
    gradients = tape.gradient(scaled, self.trainable_variables)
    self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
    return {"twice": loss}
""".strip()
_TEST_STEP = """
def test_step(self, data):
    x, y, w = UNPACK(data)
    y_pred = self(x, training=False)
    loss = self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=w)
    return {"tested": 3.0 * loss}
""".strip()


# compile


def _functions(p: Program) -> str:
    found = []
    row = "tf.reduce_mean(tf.square(y_true - y_pred), axis=-1)"
    if p.task in ("classes", "tokens"):
        row = "keras.losses.sparse_categorical_crossentropy(y_true, y_pred)"
    elif p.loss == "categorical_crossentropy":
        row = "keras.losses.categorical_crossentropy(y_true, y_pred)"
    if p.loss_form == "function":
        found.append(f"def own_loss(y_true, y_pred):\n    return {row}")
    elif p.loss_form == "scalar_function":
        found.append(f"def own_loss(y_true, y_pred):\n    return tf.reduce_mean({row})")
    elif p.loss_form.startswith("subclass"):
        arguments = ", **kwargs" if p.loss_form != "subclass_bare" else ""
        passed = "**kwargs" if arguments else ""
        config = (
            '\n\n    def get_config(self):\n        return {**super().get_config(), "alpha": self.alpha}'
            if p.loss_form == "subclass"
            else ""
        )
        found.append(
            "class OwnLoss(keras.losses.Loss):\n"
            f"    def __init__(self, alpha=1.0{arguments}):\n"
            f"        super().__init__({passed})\n"
            "        self.alpha = alpha\n"
            "\n"
            "    def call(self, y_true, y_pred):\n"
            f"        return self.alpha * {_cast(p, row)}{config}"
        )
    if "own_function" in (*p.metrics, *p.weighted_metrics):
        found.append(
            "def closeness(y_true, y_pred):\n"
            "    y_pred = tf.cast(y_pred, tf.float32)\n"
            "    return tf.reduce_mean(tf.cast(y_true, tf.float32)) + y_pred[..., 0] if len(y_pred.shape) > 1 else y_pred"
        )
    return "\n\n\n".join(found)


def _cast(p: Program, row: str) -> str:
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
        return f"keras.losses.{_CLASSES[p.loss]}({', '.join(arguments)})"
    return f"OwnLoss({', '.join(['alpha=5.0', *arguments])})"


def _metric(name: str) -> str:
    own = {
        "own_function": "closeness",
        "own_metric": "Distance(2.0)",
        "own_metric_without_weight": "Largest()",
        "mean_absolute_error": "keras.metrics.mean_absolute_error",
    }
    if name in own:
        return own[name]
    if name == "SparseTopKCategoricalAccuracy":
        return "keras.metrics.SparseTopKCategoricalAccuracy(k=2)"
    if name == "TopKCategoricalAccuracy":
        return "keras.metrics.TopKCategoricalAccuracy(k=2)"
    return f"keras.metrics.{name}()" if name[0].isupper() else f'"{name}"'


def _metrics(names: tuple[str, ...]) -> str:
    return f"[{', '.join(map(_metric, names))}]"


def _optimizer(p: Program) -> list[str]:
    rate = _RATES.get(p.optimizer, 0.01)
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
    name = "SGD" if p.optimizer == "Momentum" else p.optimizer
    return [f"optimizer = keras.optimizers.{name}({', '.join(arguments)})"]


def _compile(p: Program) -> list[str]:
    arguments = ["optimizer=optimizer"]
    if p.outputs == "one":
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
        # XLA's own order of additions; compiling takes longer than all the rest.
        arguments.append("jit_compile=False")
    return [f"model.compile({', '.join(arguments)})"]


def _callbacks(p: Program) -> list[str]:
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
    }
    return [f"    {made[name]}," for name in p.callbacks]


_INITIAL = """
def initial(model):
    random = np.random.default_rng(11)
    for variable in model.weights:
        kernel = len(variable.shape) > 1
        if kernel:
            variable.assign(random.normal(size=variable.shape, scale=0.4).astype("float32"))
""".strip()


def _build(p: Program) -> str:
    lines = [*_model(p), "initial(model)", *_optimizer(p), *_compile(p)]
    if p.callbacks:
        lines += ['return {"model": model, "callbacks": [', *_callbacks(p), "]}"]
    else:
        lines += ["return model"]
    return f"{_INITIAL}\n\n\ndef build():\n" + indent("\n".join(lines), "    ")


# fit


def fit_arguments(p: Program) -> dict[str, object]:
    """What plain `model.fit` is given besides data and callbacks."""
    arguments: dict[str, object] = {
        "batch_size": p.batch * p.accumulation,
        "epochs": p.epochs,
        "shuffle": False,
        "verbose": 0,
    }
    if p.class_weight:
        arguments["class_weight"] = CLASS_WEIGHT
    if p.validation == "second":
        arguments["validation_freq"] = 2
    return arguments


# Rows that are validated: the last batch is never full.
VALIDATION_ROWS = 17


def _fit(p: Program) -> str:
    arguments = "".join(f", {name}={value!r}" for name, value in fit_arguments(p).items())
    if p.validation != "none":
        arguments += f", validation_batch_size={p.batch}, validation_data=split(arrays({VALIDATION_ROWS}, 2))"
    lines = [
        'if __name__ == "__main__":',
        f"    keras.mixed_precision.set_global_policy({p.policy!r})",
        f"    keras.utils.set_random_seed({SEED})",
        "    x, y, *weights = split(arrays(" + f"{p.rows}, 1))",
        "    built = build()",
        '    model = built["model"] if isinstance(built, dict) else built',
        '    callbacks = built["callbacks"] if isinstance(built, dict) else []',
        "    weights = weights[0] if weights else None",
        f"    history = model.fit(x, y, sample_weight=weights, callbacks=callbacks{arguments})",
        "    print(history.history)",
    ]
    return "\n".join(lines)

"""The source of a program's model: layers, custom layers, custom model classes with their overrides."""

from __future__ import annotations

from textwrap import indent

from hack.parity.programs.program import CLASSES, LABEL, SECOND, TOKENS, WIDTH, Program


def _body(p: Program) -> list[str]:
    regularizer = ", kernel_regularizer=keras.regularizers.L2(0.01)" if "l2" in p.extras else ""
    regularizer += ", activity_regularizer=keras.regularizers.L2(0.01)" if "activity" in p.extras else ""
    dense = f'keras.layers.Dense(8, activation="tanh"{regularizer})'
    first = []
    if "adapted" in p.extras:
        first = [_ADAPTED[p.inputs]] if p.inputs in _ADAPTED else []
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
    if p.inputs == "fixed":
        layers = ["keras.layers.LSTM(8, stateful=True)"]
    layers = [*first, *layers]
    if p.inputs == "tokens_lstm":
        layers.append(f"keras.layers.LSTM(5, return_sequences={p.task == 'tokens'})")
    extra = {
        "batchnorm": "keras.layers.BatchNormalization(momentum=0.8)",
        "dropout": "keras.layers.Dropout(0.3, seed=5)",
        "add_loss": "Penalty()",
        "dropouts": "Dropouts()",
        "frozen": 'keras.layers.Dense(8, activation="tanh", trainable=False)',
        "frozen_inside": "FrozenInside()",
        "shared": "Twice()",
        "unused": "Unused()",
        "no_config": "Scaled(0.5)",
        "stateful": "Counter()",
    }
    layers += [text for name, text in extra.items() if name in p.extras]
    if p.task not in ("tokens", "image"):
        if p.inputs in ("tokens", "sequence"):
            layers.append("keras.layers.GlobalAveragePooling1D()")
        elif p.inputs == "image":
            layers.append("keras.layers.Flatten()")
    return layers


_ADAPTED = {
    "vector": "adapted(keras.layers.Normalization())",
    "sequence": "adapted(keras.layers.Normalization())",
    "tokens": "keras.layers.IntegerLookup(vocabulary=[7, 3, 9, 1, 4], mask_token=0)",
    "tokens_lstm": "keras.layers.IntegerLookup(vocabulary=[7, 3, 9, 1, 4], mask_token=0)",
}


def _head_layers(p: Program) -> list[str]:
    float32 = "" if p.policy == "float32" else ', dtype="float32"'
    name = f', name="{LABEL}"' if p.outputs in ("named", "without_loss") else ""
    activation = ""
    if p.head != "logits":
        function = {"binary": "sigmoid", "classes": "softmax", "onehot": "softmax", "tokens": "softmax"}.get(p.task)
        if p.loss in ("hinge", "squared_hinge"):
            function = "tanh"
        if p.loss in ("poisson", "mean_squared_logarithmic_error"):
            function = "softplus"
        activation = f', activation="{function}"' if function else ""
    if p.task == "image":
        return [f'keras.layers.Conv2D(1, 3, padding="same"{activation}{float32})']
    units = {"regression": 1, "binary": 1, "unlabelled": WIDTH}.get(p.task, CLASSES)
    if p.head == "rank1":
        return [f"keras.layers.Dense({units}{activation}{float32})", f"keras.layers.Reshape((){float32}{name})"]
    return [f"keras.layers.Dense({units}{activation}{float32}{name})"]


def _shape(p: Program) -> str:
    return {
        "vector": f"({WIDTH},)",
        "integers": f"({WIDTH},)",
        "fixed": f"({TOKENS}, 4)",
        "image": "(6, 6, 1)",
        "tokens": f"({TOKENS},)",
        "tokens_lstm": f"({TOKENS},)",
        "sequence": f"({TOKENS}, 4)",
    }[p.inputs]


def _input(p: Program) -> str:
    dtype = f', dtype="{_zeros_dtype(p)}"' if _zeros_dtype(p) != "float32" else ""
    if p.inputs == "fixed":
        dtype = f", batch_size={p.batch}"
    return f'keras.Input({_shape(p)}, name="x"{dtype})'


def _has_class(p: Program) -> bool:
    return p.override != "none" or p.form == "subclass"


def model(p: Program) -> list[str]:
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
    elif p.inputs == "several_list":
        lines += [
            "inputs = [keras.Input((4,)), keras.Input((3,))]",
            "x = keras.layers.Concatenate()([keras.layers.Dense(4)(inputs[0]), inputs[1]])",
        ]
    else:
        lines += [f"inputs = x = {_input(p)}"]
    lines += [f"x = {layer}(x)" for layer in body]
    lines += ["first = x", *(f"first = {layer}(first)" for layer in head)]
    if p.outputs == "one":
        return [*lines, f"model = {kind}(inputs, first)"]
    float32 = "" if p.policy == "float32" else ', dtype="float32"'
    name = f', name="{SECOND}"' if p.outputs in ("named", "without_loss") else ""
    # With a list of outputs, Keras 3 wants a loss, or None, of each.
    named = p.outputs == "dict" or (p.outputs == "without_loss" and not p.legacy)
    outputs = f'{{"{LABEL}": first, "{SECOND}": other}}' if named else "[first, other]"
    return [*lines, f"other = keras.layers.Dense(1{float32}{name})(x)", f"model = {kind}(inputs, {outputs})"]


def _zeros_dtype(p: Program) -> str:
    whole = {"image": "uint8", "integers": "int64", "tokens": "int64", "tokens_lstm": "int64"}
    return whole.get(p.inputs, "float32")


_LAYERS = {
    "dropouts": """
class Dropouts(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.generators = [keras.random.SeedGenerator(seed) for seed in (1, 2)]
        self.by_name = {"third": keras.random.SeedGenerator(3)}

    def call(self, x, training=False):
        for generator in [*self.generators, self.by_name["third"]] if training else []:
            x = keras.random.dropout(x, 0.2, seed=generator)
        return x
""",
    "frozen_inside": """
class FrozenInside(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.inner = keras.layers.Dense(8, activation="tanh")
        self.inner.trainable = False
        self.outer = keras.layers.Dense(8)

    def call(self, x):
        return self.outer(self.inner(x))
""",
    "shared": """
class Twice(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(8, activation="tanh")
        self.dense = keras.layers.Dense(8, activation="tanh")

    def call(self, x):
        return self.dense(self.dense(self.first(x)))
""",
    "unused": """
class Unused(keras.layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(name="kernel", shape=(4, 4), initializer="ones")

    def call(self, x):
        return x
""",
    "no_config": """
class Scaled(keras.layers.Layer):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def call(self, x):
        return self.scale * x
""",
    "add_loss": """
class Penalty(keras.layers.Layer):
    def call(self, x):
        self.add_loss(0.05 * tf.reduce_mean(tf.square(tf.cast(x, tf.float32))))
        return x
""",
    "stateful": """
class Counter(keras.layers.Layer):
    def build(self, shape):
        self.seen = self.add_weight(name="seen", shape=(), initializer="zeros", trainable=False, dtype="SEEN_DTYPE")

    def call(self, x):
        self.seen.assign_add(tf.ones((), self.seen.dtype))
        return x
""",
}
_MASK = """
    def compute_mask(self, inputs, mask=None):
        return mask
"""


def classes(p: Program) -> str:
    parts = [f"{text}{_MASK}".strip() for name, text in _LAYERS.items() if name in p.extras]
    parts = [text.replace("SEEN_DTYPE", "float32" if p.legacy else "int64") for text in parts]
    if "adapted" in p.extras and p.inputs in ("vector", "sequence"):
        parts.append('def adapted(layer):\n    layer.adapt(arrays(24, 3)["x"])\n    return layer')
    if _has_class(p):
        parts.append(_net(p))
    return "\n\n\n".join(parts)


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
            float32 = "" if p.policy == "float32" else ', dtype="float32"'
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
    if p.task == "unlabelled":
        methods = {"compute_loss": _COMPUTE_LOSS_OF_INPUT, "both_steps": _STEPS_OF_INPUT}[p.override]
    if methods:
        if len(lines) > 1:
            lines.append("")
        scaled = "self.optimizer.scale_loss(loss)" if p.policy == "mixed_float16" else "loss"
        text = methods.replace("UNPACK", "keras.utils.unpack_x_y_sample_weight")
        metrics = "**self.compute_metrics(x, y, y_pred, sample_weight=w)" if p.metrics or p.weighted_metrics else ""
        text = text.replace(", **RESULTS", f", {metrics}" if metrics else "").replace("SCALED", f"scaled = {scaled}")
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
_COMPUTE_LOSS_OF_INPUT = """
def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
    return tf.reduce_mean(tf.square(tf.cast(x, tf.float32) - tf.cast(y_pred, tf.float32)))
""".strip()
_STEPS_OF_INPUT = """
def train_step(self, data):
    x, _, _ = UNPACK(data)
    with tf.GradientTape() as tape:
        y_pred = self(x, training=True)
        loss = tf.reduce_mean(tf.square(tf.cast(x, tf.float32) - tf.cast(y_pred, tf.float32)))
        SCALED
    gradients = tape.gradient(scaled, self.trainable_variables)
    self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
    return {"distance": loss}

def test_step(self, data):
    x, _, _ = UNPACK(data)
    y_pred = self(x, training=False)
    return {"distance": tf.reduce_mean(tf.abs(tf.cast(x, tf.float32) - tf.cast(y_pred, tf.float32)))}
""".strip()
_COMPUTE_METRICS = """
def compute_metrics(self, x, y, y_pred, sample_weight=None):
    results = super().compute_metrics(x, y, y_pred, sample_weight)
    return {**results, "constant": tf.constant(2.0)}
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
    return {"twice": loss, **RESULTS}
""".strip()
_TEST_STEP = """
def test_step(self, data):
    x, y, w = UNPACK(data)
    y_pred = self(x, training=False)
    loss = self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=w)
    return {"tested": 3.0 * loss, **RESULTS}
""".strip()

"""A Program as runnable Python source: `arrays`, `split`, `build` and a plain `model.fit`.

Plain Keras and the trainer run the same text; it is printed for a program that differs.
"""

from __future__ import annotations

from textwrap import indent

from hack.parity.programs.compile_source import callbacks, compiled, definitions, optimizer
from hack.parity.programs.model_source import classes, model
from hack.parity.programs.program import CLASSES, LABEL, SECOND, TOKENS, WEIGHT, WIDTH, Program

SEED = 7
CLASS_WEIGHT = {0: 1.0, 1: 2.5, 2: 0.5}


def source(program: Program) -> str:
    """Return Python source that `python FILE` runs as plain Keras."""
    parts = [_head(program), _arrays(program), _split(program)]
    parts += [text for text in (classes(program), definitions(program)) if text]
    parts += [_build(program), _fit(program)]
    return "\n\n\n".join(part.strip("\n") for part in parts) + "\n"


def _head(p: Program) -> str:
    docstring = f'"""Trained by plain Keras as it stands here. parity: {p.to_json()}"""'.replace("\\", "")
    keras = "tf_keras as keras" if p.legacy else "keras"
    return f"{docstring}\n\nimport numpy as np\nimport tensorflow as tf\nimport {keras}"


# Data


def _arrays(p: Program) -> str:
    lines = ["random = np.random.default_rng(seed)", "data = {}"]
    if p.inputs == "vector":
        lines += [f'data["x"] = x = random.normal(size=(rows, {WIDTH})).astype("float32")', "row = x"]
    elif p.inputs == "image":
        lines += [
            'data["x"] = x = random.integers(0, 256, size=(rows, 6, 6, 1)).astype("uint8")',
            "row = x.reshape(rows, -1)[:, :6] / 128.0 - 1.0",
        ]
    elif p.inputs in ("tokens", "tokens_lstm"):
        lines += [
            f"lengths = random.integers(1, {TOKENS} + 1, size=rows)",
            f"x = random.integers(1, 10, size=(rows, {TOKENS}))",
            f"x[np.arange({TOKENS})[None] >= lengths[:, None]] = 0",
            'data["x"] = x.astype("int64")',
            "row = (x - 4.5) / 4.5",
        ]
    elif p.inputs == "integers":
        lines += [f'data["x"] = x = random.integers(0, 5, size=(rows, {WIDTH}))', "row = x / 2.0 - 1.0"]
    elif p.inputs == "fixed":
        lines += [f'data["x"] = x = random.normal(size=(rows, {TOKENS}, 4)).astype("float32")', "row = x.sum(axis=2)"]
    elif p.inputs == "sequence":
        lines += [
            f"lengths = random.integers(1, {TOKENS} + 1, size=rows)",
            f'x = random.normal(size=(rows, {TOKENS}, 4)).astype("float32")',
            f"x[np.arange({TOKENS})[None] >= lengths[:, None]] = 0.0",
            'data["x"] = x',
            "row = x.sum(axis=2)",
        ]
    else:
        lines += [
            'data["a"] = a = random.normal(size=(rows, 4)).astype("float32")',
            'data["b"] = b = random.normal(size=(rows, 3)).astype("float32")',
            "row = np.concatenate([a, b], axis=1)",
        ]
    lines += [f'data["{LABEL}"] = {_label(p)}'] if p.task != "unlabelled" else []
    if p.second_task:
        lines += [f'data["{SECOND}"] = row[:, 1:2].astype("float32") * 0.5 + 0.2']
    if p.sample_weight == "example":
        lines += [f'data["{WEIGHT}"] = random.uniform(0.2, 2.0, size=rows).astype("float32")']
    elif p.sample_weight == "token":
        lines += [f'data["{WEIGHT}"] = random.uniform(0.2, 2.0, size=(rows, {TOKENS})).astype("float32")']
    lines += ["return data"]
    return "def arrays(rows, seed):\n" + indent("\n".join(lines), "    ")


def _label(p: Program) -> str:  # noqa: PLR0911 - one for each task
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
    several = {"several": '{"a": data["a"], "b": data["b"]}', "several_list": '[data["a"], data["b"]]'}
    inputs = several.get(p.inputs, 'data["x"]')
    if p.task == "unlabelled":
        labels = "None"
    elif p.outputs == "one":
        labels = f'data["{LABEL}"]'
    elif p.outputs == "without_loss":
        labels = f'{{"{LABEL}": data["{LABEL}"]}}'
    elif p.outputs == "list":
        labels = f'[data["{LABEL}"], data["{SECOND}"]]'
    else:
        labels = f'{{"{LABEL}": data["{LABEL}"], "{SECOND}": data["{SECOND}"]}}'
    weights = "" if p.sample_weight == "none" else f', data["{WEIGHT}"]'
    return f"def split(data):\n    return {inputs}, {labels}{weights}"


_INITIAL = """
def initial(model):
    random = np.random.default_rng(11)
    for variable in model.weights:
        kernel = len(variable.shape) > 1
        if kernel:
            variable.assign(random.normal(size=variable.shape, scale=0.4).astype("float32"))
""".strip()


def _build(p: Program) -> str:
    quantized = ['model.quantize("float8")'] if "float8" in p.extras else []
    lines = [*model(p), "initial(model)", *quantized, *optimizer(p), *compiled(p)]
    if p.callbacks:
        lines += ['return {"model": model, "callbacks": [', *callbacks(p), "]}"]
    else:
        lines += ["return model"]
    return f"{_INITIAL}\n\n\ndef build():\n" + indent("\n".join(lines), "    ")


# fit


def fit_arguments(p: Program) -> dict[str, object]:
    """Return the arguments of plain `model.fit` besides data and callbacks."""
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
    if p.initial_epoch:
        arguments["initial_epoch"] = p.initial_epoch
    return arguments


# Number of validation rows: the last batch is never full.
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

"""Code that was written for Keras 2 or for old names of mixed precision, recognized in a program's text or errors.

Keras 3 removed what TensorFlow 2.0 to 2.15 had: such a program runs in tf_keras (`keras: Legacy`). The text is parsed,
never executed. Standard library alone, so that client, operator and trainer can ask.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

_SET_POLICY = "Write tf.keras.mixed_precision.set_global_policy('mixed_float16'), or leave it to the job's precision."
# Old names of mixed precision, each with what replaces it.
OLD_MIXED_PRECISION = MappingProxyType(
    {
        "enable_mixed_precision_graph_rewrite": "The graph rewrite is gone: leave the line out and set precision: "
        "{policy: mixed_float16}, or write tf.keras.mixed_precision.set_global_policy('mixed_float16').",
        "set_policy": _SET_POLICY,
        "auto_mixed_precision": "tf.config.optimizer's auto_mixed_precision rewrites graphs behind Keras: leave the "
        "line out and set precision: {policy: mixed_float16}.",
    }
)

# Arguments of optimizers that Keras 3 refuses.
_REMOVED_ARGUMENTS = frozenset({"lr", "decay"})
_OPTIMIZERS = frozenset(
    {"Adadelta", "Adagrad", "Adam", "Adamax", "AdamW", "Ftrl", "Nadam", "RMSprop", "SGD", "LossScaleOptimizer"}
)
# What tf.keras of tf_keras has and that of Keras 3 has not (compared by tests/api/test_keras_2_code.py).
REMOVED_NAMES = (
    "backend.function",
    "backend.in_test_phase",
    "backend.in_train_phase",
    "backend.learning_phase",
    "backend.learning_phase_scope",
    "backend.placeholder",
    "backend.print_tensor",
    "backend.set_learning_phase",
    "callbacks.BaseLogger",
    "callbacks.experimental",
    "constraints.RadialConstraint",
    "estimator.model_to_estimator",
    "experimental.CosineDecay",
    "experimental.LinearModel",
    "experimental.SequenceFeatures",
    "experimental.WideDeepModel",
    "layers.AbstractRNNCell",
    "layers.DenseFeatures",
    "layers.LocallyConnected1D",
    "layers.LocallyConnected2D",
    "layers.experimental",
    "metrics.MeanRelativeError",
    "metrics.MeanTensor",
    "models.model_from_config",
    "optimizers.experimental",
    "optimizers.legacy",
    "utils.GeneratorEnqueuer",
    "utils.OrderedEnqueuer",
    "utils.experimental",
)
_KERAS = ("tf.keras.", "tensorflow.keras.")
# Keras 3's messages about the same.
_MESSAGES = re.compile(
    r"object has no attribute 'lr'"
    r"|Argument\(s\) not recognized: \{.*'(?:lr|decay)'"
    r"|The filename must end in `?\.weights\.h5`?"
    r"|`?filepath`? provided must end in `?\.(?:keras|weights\.h5)`?"
    r"|Invalid filepath extension for saving"
    r"|Keras 3 only supports V3 `\.keras` files"
    r"|`keras\.optimizers\.legacy` is not supported in Keras 3"
    r"|has no attribute '(?:get_scaled_loss|get_unscaled_gradients|fit_generator|predict_classes)'"
    r"|No module named '(?:tensorflow\.)?keras\.(?:layers|optimizers|engine|utils|preprocessing)\.\w+"
    r"|No module named 'tensorflow\.python\.keras"
    r"|Unrecognized keyword arguments passed to \w+: \{'weights'"
    r"|unexpected keyword argument '(?:save_format|period|workers|use_multiprocessing)'"
    r"|has no attribute '(?:" + "|".join(name.rpartition(".")[2] for name in REMOVED_NAMES) + ")'"
)


@dataclass(frozen=True)
class Sign:
    """One line that shows for which Keras a program was written; `what` is the code, `line` counts from 1."""

    line: int
    what: str


def keras_2_signs(text: str) -> tuple[Sign, ...]:
    """The lines of a Python program that Keras 3 refuses and tf_keras runs, in their order.

    Empty for a program that imports `keras` or `tf_keras` itself, of which `keras: Legacy` changes nothing, and for
    one that is no valid Python.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ()
    first: dict[str, Sign] = {}
    for sign in sorted(_signs(tree), key=lambda sign: sign.line):
        first.setdefault(sign.what, sign)
    return tuple(first.values())


def old_mixed_precision(text: str) -> tuple[tuple[Sign, str], ...]:
    """The lines that turn on mixed precision by names of the past, each with its translation."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ()
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (
            node.attr == "enable_mixed_precision_graph_rewrite"
            or (node.attr == "set_policy" and "mixed_precision" in _dotted(node))
        ):
            found.append((Sign(node.lineno, _dotted(node)), OLD_MIXED_PRECISION[node.attr]))
        elif isinstance(node, ast.Constant) and node.value == "auto_mixed_precision":
            found.append((Sign(node.lineno, "auto_mixed_precision"), OLD_MIXED_PRECISION[node.value]))
    return tuple(sorted(found, key=lambda each: each[0].line))


def speaks_keras_2(message: str) -> bool:
    """Whether an error's message is what Keras 3 says to code that tf_keras runs."""
    return _MESSAGES.search(message) is not None


def _signs(tree: ast.Module) -> Iterator[Sign]:
    modules = _imported(tree)
    # `import keras` is Keras 3 whatever tf.keras is, and tf_keras needs no help.
    if "tensorflow" not in modules or modules & {"keras", "tf_keras"}:
        return
    texts = _texts(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield from _attribute(node)
        elif isinstance(node, ast.ImportFrom):
            yield from _import(node)
        elif isinstance(node, ast.Call):
            yield from _call(node, texts)


def _imported(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def _attribute(node: ast.Attribute) -> Iterator[Sign]:
    name = _dotted(node)
    if node.attr == "lr" and name.split(".")[-2:-1] in (["optimizer"], ["opt"]):
        yield Sign(node.lineno, name)
    elif node.attr in ("get_scaled_loss", "get_unscaled_gradients"):
        yield Sign(node.lineno, f".{node.attr}")
    elif name.startswith(_KERAS) and name.split("keras.", 1)[1] in REMOVED_NAMES:
        yield Sign(node.lineno, name)
    elif name.startswith(("keras.", "layers.")) and name.removeprefix("keras.") in REMOVED_NAMES:
        # After `from tensorflow import keras`, or `from tensorflow.keras import layers`.
        yield Sign(node.lineno, name)


def _import(node: ast.ImportFrom) -> Iterator[Sign]:
    for alias in node.names:
        name = f"{node.module or ''}.{alias.name}."
        if name.startswith(_KERAS) and any(name.split("keras.", 1)[1].startswith(f"{one}.") for one in REMOVED_NAMES):
            yield Sign(node.lineno, name.rstrip("."))


def _call(node: ast.Call, texts: Mapping[str, str]) -> Iterator[Sign]:
    name = _dotted(node.func)
    last = name.split(".")[-1]
    named = {keyword.arg for keyword in node.keywords}
    path = _text(_argument(node, "filepath"), texts)
    if last in _OPTIMIZERS:
        yield from (Sign(node.lineno, f"{last}({argument}=…)") for argument in sorted(_REMOVED_ARGUMENTS & named))
    elif last in ("fit_generator", "evaluate_generator", "predict_generator", "predict_classes"):
        yield Sign(node.lineno, f".{last}(…)")
    elif path is None:
        return
    elif last == "save_weights" and not path.endswith(".weights.h5"):
        yield Sign(node.lineno, f"save_weights({path!r})")
    elif last == "ModelCheckpoint":
        weights = _is_true(next((each.value for each in node.keywords if each.arg == "save_weights_only"), None))
        if not path.endswith(".weights.h5" if weights else (".keras", ".h5")):
            yield Sign(node.lineno, f"ModelCheckpoint({path!r})")
    elif last == "save" and name.split(".")[-2:-1] == ["model"] and not path.endswith((".keras", ".h5", ".hdf5")):
        yield Sign(node.lineno, f"model.save({path!r})")


def _argument(node: ast.Call, name: str) -> ast.expr | None:
    """The first positional argument, or the one of that name."""
    if node.args:
        return node.args[0]
    return next((keyword.value for keyword in node.keywords if keyword.arg == name), None)


def _texts(tree: ast.Module) -> Mapping[str, str]:
    """The end of the text that a variable holds, of those that hold one text alone."""
    found: dict[str, set[str | None]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, set()).add(_text(node.value, {}))
    return {name: text for name, texts in found.items() if len(texts) == 1 for text in texts if text is not None}


def _text(node: ast.expr | None, texts: Mapping[str, str]) -> str | None:
    """The end of a text that is known before the program runs: a constant, its last part, or a variable of `texts`."""
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr(values=[*_, last]) | ast.BinOp(op=ast.Add() | ast.Div(), right=last):
            return _text(last, texts)
        case ast.Call(func=ast.Attribute(attr="join"), args=[*_, last]):
            return _text(last, texts)
        case ast.Name(id=name):
            return texts.get(name)
    return None


def _is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _dotted(node: ast.expr) -> str:
    """`a.b.c` of such an expression; what stands before the names counts as nothing."""
    names: list[str] = []
    at: ast.expr = node
    while isinstance(at, ast.Attribute):
        names.append(at.attr)
        at = at.value
    if isinstance(at, ast.Name):
        names.append(at.id)
    return ".".join(reversed(names))

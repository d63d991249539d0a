"""Old names of mixed precision in a program's text, and Keras 2 code in the messages of Keras 3.

`keras_2_code` reads Keras 2 code in the text; what it does not see ends in one of these messages. The text is parsed,
never executed. Standard library alone, so that client, operator and trainer can ask.
"""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass
from types import MappingProxyType

from mptraining_api.keras_2.names import REMOVED

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

# What Keras 3 says to code of Keras 2.
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
    # tf_keras gives `call` the `training` that it has no default for; these are the words of `Signature.bind`.
    r"|missing a required argument: 'training'"
    r"|A KerasTensor cannot be used as input to a TensorFlow function"
    r"|has no attribute '(?:" + "|".join(sorted(name.rpartition(".")[2] for name in REMOVED)) + ")'"
)


@dataclass(frozen=True)
class OldLine:
    """A line (counted from 1) that uses the name `found` of the past, and what to write today."""

    line: int
    found: str
    change: str


def old_mixed_precision(text: str) -> tuple[OldLine, ...]:
    """The lines that turn on mixed precision by names of the past; none in a text that is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return ()
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (
            node.attr == "enable_mixed_precision_graph_rewrite"
            or (node.attr == "set_policy" and "mixed_precision" in ast.unparse(node.value))
        ):
            found.append(OldLine(node.lineno, ast.unparse(node), OLD_MIXED_PRECISION[node.attr]))
        elif isinstance(node, ast.Constant) and node.value == "auto_mixed_precision":
            found.append(OldLine(node.lineno, "auto_mixed_precision", OLD_MIXED_PRECISION[node.value]))
    return tuple(sorted(found, key=lambda each: each.line))


def speaks_keras_2(message: str) -> bool:
    """Whether an error's message is what Keras 3 says to code that tf_keras runs."""
    return _MESSAGES.search(message) is not None

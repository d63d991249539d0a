"""Obsolete mixed-precision APIs in a program's text, and Keras 3's error messages for Keras 2 code.

`mptraining_api.keras_2.source_code` detects Keras 2 code in the text; code that it does not detect ends in one of these
messages. The text is parsed, never executed. This module uses only the standard library and `mptraining_api`.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from types import MappingProxyType

from mptraining_api.keras_2.names import KERAS_2_ONLY
from mptraining_api.programs.source_text import parse_source

_SET_POLICY = "Write tf.keras.mixed_precision.set_global_policy('mixed_float16'), or leave it to the job's precision."
# Obsolete names of mixed-precision APIs, each with its replacement.
OLD_MIXED_PRECISION = MappingProxyType(
    {
        "enable_mixed_precision_graph_rewrite": "The graph rewrite was removed: delete the line and set precision: "
        "{policy: mixed_float16}, or write tf.keras.mixed_precision.set_global_policy('mixed_float16').",
        "set_policy": _SET_POLICY,
        "auto_mixed_precision": "tf.config.optimizer's auto_mixed_precision rewrites graphs that Keras does not see: "
        "delete the line and set precision: {policy: mixed_float16}.",
    }
)

# Of an assignment to the property of a Keras callback, which other classes have too.
CALLBACK_MODEL = "a callback's model is assigned"
# Keras 3's error messages for Keras 2 code.
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
    # tf_keras passes `training` to a `call` without a default for it; the message is that of `Signature.bind`.
    r"|missing a required argument: 'training'"
    r"|A KerasTensor cannot be used as input to a TensorFlow function"
    rf"|{CALLBACK_MODEL}"
    r"|has no attribute '(?:" + "|".join(sorted(name.rpartition(".")[2] for name in KERAS_2_ONLY)) + ")'"
)


@dataclass(frozen=True)
class OldLine:
    """A line (counted from 1) that uses the obsolete `name`, and its replacement."""

    line: int
    name: str
    change: str


def old_mixed_precision(text: str) -> tuple[OldLine, ...]:
    """Return the lines that enable mixed precision by obsolete names; none if the text is not valid Python."""
    try:
        tree = parse_source(text)
    except (SyntaxError, ValueError):
        return ()
    lines = []
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Attribute) and (
            node.attr == "enable_mixed_precision_graph_rewrite"
            or (node.attr == "set_policy" and "mixed_precision" in ast.unparse(node.value))
        ):
            lines.append(OldLine(node.lineno, ast.unparse(node), OLD_MIXED_PRECISION[node.attr]))
        elif isinstance(node, ast.Constant) and node.value == "auto_mixed_precision":
            lines.append(OldLine(node.lineno, "auto_mixed_precision", OLD_MIXED_PRECISION[node.value]))
    return tuple(sorted(lines, key=lambda line: line.line))


def is_keras_2_message(message: str) -> bool:
    """Return whether the message is one of Keras 3 for code that tf_keras can run."""
    return _MESSAGES.search(message) is not None

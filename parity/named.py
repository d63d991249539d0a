"""Programs with names: each row of issue 14's table "What was seen" that is a function program."""

from __future__ import annotations

from dataclasses import replace

from parity.program import Program, problem

_TWO_EPOCHS = Program(rows=36, epochs=2)
_CLASSES = replace(_TWO_EPOCHS, task="classes", loss="sparse_categorical_crossentropy", dtype="int64", rank="B")
_BINARY = replace(_TWO_EPOCHS, task="binary", loss="binary_crossentropy", dtype="int64", rank="B")
_SCALAR = replace(_TWO_EPOCHS, rank="B")

_CASES: dict[str, Program] = {
    "mse as a string, labels of shape (B,)": _SCALAR,
    "mse as a string, AdamW, labels of shape (B,)": replace(_SCALAR, optimizer="AdamW"),
    "Huber, labels of shape (B,)": replace(_SCALAR, loss="huber", loss_form="class"),
    "own loss function of rows": replace(_SCALAR, loss_form="function"),
    "own loss function that returns a scalar": replace(_SCALAR, loss_form="scalar_function"),
    "own loss function that returns a scalar, of images": replace(
        _TWO_EPOCHS, inputs="image", task="image", dtype="uint8", loss_form="scalar_function"
    ),
    "own loss class with an argument, without get_config": replace(_SCALAR, loss_form="subclass_kwargs"),
    "own loss class without **kwargs": replace(_SCALAR, loss_form="subclass_bare"),
    "MeanSquaredError(reduction='sum')": replace(_SCALAR, loss_form="class", reduction="sum"),
    "a model that overrides compute_loss": replace(_SCALAR, override="compute_loss"),
    "Embedding(mask_zero=True) to logits of tokens": replace(
        _TWO_EPOCHS,
        inputs="tokens_lstm",
        task="tokens",
        head="logits",
        loss="sparse_categorical_crossentropy",
        loss_form="class",
        dtype="int64",
        metrics=("accuracy",),
        weighted_metrics=("sparse_categorical_accuracy",),
    ),
    "SGD(use_ema=True)": replace(_SCALAR, ema="ema"),
    "SGD(use_ema=True, ema_overwrite_frequency=2)": replace(_SCALAR, ema="overwrite"),
    "binary_crossentropy as a string, labels 0 and 1": _BINARY,
    "own loss function, integer labels": replace(_SCALAR, loss_form="function", dtype="int64"),
    "own Metric class": replace(_CLASSES, metrics=("own_metric",), validation="each"),
}


def named_programs() -> list[Program]:
    """Every case in both generations."""
    found = [
        replace(program, name=name, generation=generation)
        for name, program in _CASES.items()
        for generation in ("Keras3", "Legacy")
    ]
    assert all(problem(program) is None for program in found)
    return found

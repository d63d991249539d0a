"""Programs with names, each of a difference that was seen once."""

from __future__ import annotations

from dataclasses import replace

from hack.parity.programs.program import Program, problem

_TWO_EPOCHS = Program(rows=36, epochs=2)
_SCALAR = replace(_TWO_EPOCHS, rank="B")

_CASES: dict[str, Program] = {
    "AdamW, labels of shape (B,)": replace(_SCALAR, optimizer="AdamW"),
    "own loss function that returns a scalar, of images": replace(
        _TWO_EPOCHS, inputs="image", task="image", dtype="uint8", loss_form="scalar_function"
    ),
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
    # Found by the drawn programs: the loss of a mask is a sum over the replicas, which alternate there.
    "a mask and an activity regularizer": replace(
        _TWO_EPOCHS,
        inputs="sequence",
        task="tokens",
        loss="sparse_categorical_crossentropy",
        dtype="int64",
        extras=("activity",),
    ),
    "own loss function, integer labels": replace(_SCALAR, loss_form="function", dtype="int64"),
}


def named_programs() -> list[Program]:
    """Return every case in both generations."""
    programs = [
        replace(program, name=name, generation=generation)
        for name, program in _CASES.items()
        for generation in ("Keras3", "Legacy")
    ]
    assert all(problem(program) is None for program in programs)
    return programs

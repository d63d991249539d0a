"""Programs with names, each of a difference that was seen once, and every choice alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hack.parity.programs import program as choices
from hack.parity.programs.program import Program, problem

_TWO_EPOCHS = Program(rows=36, epochs=2)
_CLASSES = replace(_TWO_EPOCHS, task="classes", loss="sparse_categorical_crossentropy", dtype="int64", rank="B")
_BINARY = replace(_TWO_EPOCHS, task="binary", loss="binary_crossentropy", dtype="int64", rank="B")
_SCALAR = replace(_TWO_EPOCHS, rank="B")

# Each choice alone is in `single_choices`.
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
    found = [
        replace(program, name=name, generation=generation)
        for name, program in _CASES.items()
        for generation in ("Keras3", "Legacy")
    ]
    assert all(problem(program) is None for program in found)
    return found


# For each choice, the first of these that makes it a valid program.
_BASES = (
    replace(_TWO_EPOCHS, validation="each"),
    replace(_TWO_EPOCHS, validation="each", remainder="PadAndMask", rows=29),
    replace(_CLASSES, validation="each"),
    replace(_BINARY, validation="each"),
    replace(_TWO_EPOCHS, task="onehot", loss="categorical_crossentropy", validation="each"),
    replace(_TWO_EPOCHS, task="vector", validation="each"),
    replace(_TWO_EPOCHS, inputs="image", task="image", validation="each"),
    replace(_CLASSES, inputs="tokens", task="tokens", rank="B1", head="logits", loss_form="class", validation="each"),
    replace(_TWO_EPOCHS, form="functional", outputs="list", validation="each"),
    replace(_TWO_EPOCHS, loss_form="class", validation="each"),
    replace(_BINARY, loss_form="class", validation="each"),
    replace(_TWO_EPOCHS, override="compute_loss", validation="each"),
    replace(_TWO_EPOCHS, form="functional", validation="each"),
    replace(_TWO_EPOCHS, weight_decay=True, validation="each"),
    _TWO_EPOCHS,
)


def single_choices() -> list[Program]:
    """Return every value of every field alone, in both generations: they show the errors of a single choice."""
    values: dict[str, tuple[object, ...]] = {
        "form": choices.FORMS,
        "inputs": choices.INPUTS,
        "extras": tuple((extra,) for extra in choices.EXTRAS),
        "outputs": choices.OUTPUTS,
        "override": choices.OVERRIDES,
        "task": choices.TASKS,
        "head": choices.HEADS,
        "dtype": choices.DTYPES,
        "loss": tuple(sorted({loss for losses in choices.LOSSES.values() for loss in losses})),
        "loss_form": choices.LOSS_FORMS,
        "reduction": choices.REDUCTIONS,
        "loss_weights": (True,),
        "metrics": tuple((name,) for name in _METRIC_NAMES),
        "weighted_metrics": tuple((name,) for name in _METRIC_NAMES),
        "optimizer": choices.OPTIMIZERS,
        "ema": choices.EMAS,
        "clipping": choices.CLIPPINGS,
        "weight_decay": (True,),
        "decay_excludes": (True,),
        "loss_scale": (True,),
        "schedule": choices.SCHEDULES,
        "class_weight": (True,),
        "sample_weight": choices.SAMPLE_WEIGHTS,
        "callbacks": tuple((name,) for name in choices.CALLBACKS),
        "validation": choices.VALIDATIONS,
        "initial_epoch": (1,),
        "accumulation": (3,),
        "steps_per_execution": (4,),
        "policy": choices.POLICIES,
        "strategy": choices.STRATEGIES,
    }
    found: dict[str, Program] = {}
    for name, drawn_from in values.items():
        for value in drawn_from:
            for generation in ("Keras3", "Legacy"):
                made = (_chosen(base, name, value, generation) for base in _BASES)
                program = next((one for one in made if problem(one) is None), None)
                if program is not None:
                    found.setdefault(program.key, program)
    return list(found.values())


_METRIC_NAMES = tuple(sorted({name for names in choices.METRICS.values() for name in names} | {*choices.OWN_METRICS}))


def _chosen(base: Program, name: str, value: object, generation: str) -> Program:
    changed: dict[str, Any] = {name: value, "generation": generation}
    return replace(base, **changed)

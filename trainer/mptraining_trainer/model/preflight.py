"""Checks of the first batch and the model before training, with warnings about speed and accuracy.

`warnings` decides from plain `Facts`, which `first_look` gathers, and raises if training cannot work. Does not import
TensorFlow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mptraining_api.problems import InvalidData, InvalidProgram

# Names of Keras' losses whose label is a class number.
SPARSE = ("SparseCategoricalCrossentropy",)
# Names of Keras' losses that compare label and output element by element, so that both have one shape.
ELEMENTWISE = (
    *("BinaryCrossentropy", "BinaryFocalCrossentropy", "CategoricalCrossentropy", "CategoricalFocalCrossentropy"),
    *("MeanSquaredError", "MeanAbsoluteError", "MeanAbsolutePercentageError", "MeanSquaredLogarithmicError"),
    *("Huber", "LogCosh", "Poisson", "KLDivergence", "Hinge", "SquaredHinge", "CategoricalHinge", "CosineSimilarity"),
)


@dataclass(frozen=True)
class InputFacts:
    name: str
    dtype: str
    finite: bool


@dataclass(frozen=True)
class LabelFacts:
    """`shape` is one example's; minimum and maximum are None if the labels are not numbers."""

    dtype: str
    shape: tuple[int, ...]
    whole: bool
    minimum: float | None
    maximum: float | None


@dataclass(frozen=True)
class OutputFacts:
    """`shape` is one example's. `probabilities`: rows are in [0, 1] and sum to 1; None without a forward pass."""

    layer: str
    dtype: str
    shape: tuple[int | None, ...] | None
    activation: str | None
    probabilities: bool | None
    finite: bool


@dataclass(frozen=True)
class Facts:
    """`widths` are units or filters of the hidden layers; `from_logits` is None for losses without this argument."""

    device: Literal["cpu", "gpu", "tpu"]
    device_title: str
    compute_capability: float | None
    native_bfloat16: bool
    policy: str
    per_replica_batch: int
    widths: tuple[tuple[str, int], ...]
    inputs: tuple[InputFacts, ...]
    label: LabelFacts
    output: OutputFacts
    loss: str
    from_logits: bool | None


_MOST_NAMES = 5


@dataclass(frozen=True)
class Finding:
    """A setting that works but costs speed or accuracy; `topic` is CamelCase."""

    topic: str
    message: str


def warnings(facts: Facts) -> list[Finding]:
    """Return all findings, the most important first.

    Raises InvalidData for inputs or labels, InvalidProgram for an output, with which training cannot work.
    """
    _check_inputs(facts)
    _check_output(facts)
    _check_label(facts)
    findings = (_output_dtype(facts), _logits(facts), _hardware(facts), _float64(facts), *_multiples(facts))
    return [finding for finding in findings if finding]


def _check_inputs(facts: Facts) -> None:
    for tensor in facts.inputs:
        if not tensor.finite:
            raise InvalidData(
                "spec.data.features",
                f"{tensor.name!r} has NaN or Inf in the first batch",
                expected="finite numbers",
                next_step="Correct the records, or replace such values in data.preprocess.",
            )


def _check_output(facts: Facts) -> None:
    if not facts.output.finite:
        raise InvalidProgram(
            "spec.program",
            f"the untrained model's output (layer {facts.output.layer!r}, {facts.output.dtype}) is NaN or Inf",
            expected="finite numbers for finite inputs",
            next_step="Scale the inputs (data.preprocess), or try precision.policy: float32.",
        )


def _check_label(facts: Facts) -> None:
    label, shape = facts.label, facts.output.shape
    is_text = label.dtype == "object" or label.dtype.startswith(("|S", "<U"))
    if is_text and facts.loss in (*SPARSE, *ELEMENTWISE):
        raise InvalidData(
            "spec.data.label",
            f"the label is text, with the loss {facts.loss}",
            expected="class numbers from 0" if facts.loss in SPARSE else "numbers",
            next_step="Map the label to numbers in data.preprocess, or convert the records with class numbers.",
        )
    if facts.loss in SPARSE:
        if not label.whole:
            raise InvalidData(
                "spec.data.label",
                f"{label.dtype} labels that are not whole numbers, with the loss {facts.loss}",
                expected="class numbers from 0",
                next_step="Choose another label, or a loss for such labels.",
            )
        classes = shape[-1] if shape else None
        _check_label_shape(facts, (*(shape or ())[:-1],), f"use {facts.loss.removeprefix('Sparse')} for one-hot labels")
        if classes is None or label.minimum is None or label.maximum is None:
            return
        if classes == 1 and label.maximum >= 1:
            raise _one_unit(facts)
        if label.minimum < 0 or label.maximum >= classes:
            raise InvalidData(
                "spec.data.label",
                f"labels from {label.minimum:.0f} to {label.maximum:.0f} in the first batch, "
                f"the model has {classes} classes",
                expected=f"0 to {classes - 1}",
                next_step="Give the head as many classes as there are labels, or count the labels from 0.",
            )
    elif facts.loss in ELEMENTWISE and shape is not None:
        _check_label_shape(
            facts, shape, f"use Sparse{facts.loss} for class numbers" if "Categorical" in facts.loss else ""
        )


def _one_unit(facts: Facts) -> InvalidProgram:
    """Return the problem of a loss over classes on an output of one unit, which can only name class 0."""
    binary = "BinaryCrossentropy" + ("" if facts.output.activation == "sigmoid" else "(from_logits=True)")
    labels = f"{facts.label.minimum:.0f} to {facts.label.maximum:.0f}"
    return InvalidProgram(
        "spec.program",
        f"the loss {facts.loss} on one output unit (layer {facts.output.layer!r}), and labels from {labels}",
        expected="one unit for each class",
        next_step=f"Use {binary} for a single unit and the classes 0 and 1, or give the head a unit for each class.",
    )


def _check_label_shape(facts: Facts, expected: tuple[int | None, ...], advice: str) -> None:
    required = expected if expected[-1:] != (1,) else expected[:-1]
    shape = facts.label.shape if facts.label.shape[-1:] != (1,) else facts.label.shape[:-1]
    if len(required) == len(shape) and all(size in (None, has) for size, has in zip(required, shape, strict=True)):
        return
    raise InvalidData(
        "spec.data.label",
        f"a label has shape {list(facts.label.shape)}, the output {list(facts.output.shape or ())}, "
        f"the loss is {facts.loss}",
        expected=f"labels of shape {list(expected)}",
        next_step=f"Or {advice}." if advice else "",
    )


def _output_dtype(facts: Facts) -> Finding | None:
    if facts.output.dtype == "float32":
        return None
    return Finding(
        "OutputPrecision",
        f"the model ends in {facts.output.dtype} (layer {facts.output.layer!r}), where losses overflow or round; "
        "let it end in layers.Activation('linear', dtype='float32')",
    )


def _logits(facts: Facts) -> Finding | None:
    if facts.from_logits is None:
        return None
    activation = "sigmoid" if facts.loss.startswith("Binary") else "softmax"
    squashed = facts.output.activation == activation or (activation == "softmax" and bool(facts.output.probabilities))
    if squashed and facts.from_logits:
        return Finding(
            "Logits",
            f"{facts.loss} has from_logits=True, but layer {facts.output.layer!r} gives probabilities already, so "
            f"{activation} is applied twice and training is slow; remove the activation or say from_logits=False",
        )
    plain = facts.output.activation in ("linear", "relu") and not facts.output.probabilities
    if plain and not facts.from_logits:
        return Finding(
            "Logits",
            f"{facts.loss} expects probabilities, but layer {facts.output.layer!r} has no {activation}; "
            "say from_logits=True",
        )
    return None


def _hardware(facts: Facts) -> Finding | None:
    if facts.policy == "mixed_float16" and facts.device == "cpu":
        return Finding("Precision", "CPUs compute float16 by emulation, up to 8 times slower than float32; use Auto")
    if facts.policy == "mixed_float16" and facts.device == "gpu" and (facts.compute_capability or 7.0) < 7.0:
        return Finding(
            "Precision",
            f"{facts.device_title} (compute capability {facts.compute_capability}) has no Tensor Cores for float16: "
            "memory is saved, time is not; use float32",
        )
    if facts.policy == "mixed_bfloat16" and facts.device == "cpu" and not facts.native_bfloat16:
        return Finding("Precision", "this CPU has neither avx512_bf16 nor amx_bf16, so bfloat16 is slower than float32")
    return None


def _float64(facts: Facts) -> Finding | None:
    names = [tensor.name for tensor in facts.inputs if tensor.dtype == "float64"]
    if not names:
        return None
    return Finding(
        "Float64",
        f"{_first_names(names)} arrive as float64, NumPy's default, twice the memory and traffic; say dtype: float32",
    )


def _multiples(facts: Facts) -> list[Finding]:
    """Return findings for sizes that the hardware pads.

    Tensor Cores need multiples of 8, a TPU's matrix unit is 128 wide and 8 deep; the output layer is exempt.
    """
    if facts.device == "cpu" or (facts.device == "gpu" and facts.policy == "float32"):
        return []
    multiple = 128 if facts.device == "tpu" else 8
    findings = []
    if facts.per_replica_batch % 8:
        findings.append(Finding("BatchSize", f"{facts.per_replica_batch} examples per replica are not a multiple of 8"))
    odd = [f"{name} ({width})" for name, width in facts.widths if width % multiple]
    if odd:
        findings.append(Finding("Widths", f"not multiples of {multiple}, so padded at a cost: {_first_names(odd)}"))
    return findings


def _first_names(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")

"""What `preflight` decides over: plain values about device, policy, first batch, model and loss; no TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Names of Keras' losses. The first take a class number as label,
SPARSE = ("SparseCategoricalCrossentropy",)
# these compare label and output element by element, so that both have one shape.
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
    """`shape` is one example's; minimum and maximum are None for labels that are not numbers."""

    dtype: str
    shape: tuple[int, ...]
    whole: bool
    minimum: float | None
    maximum: float | None


@dataclass(frozen=True)
class OutputFacts:
    """`shape` is one example's. `probabilities`: rows lie in [0, 1] and sum to 1; None without a forward pass."""

    layer: str
    dtype: str
    shape: tuple[int | None, ...] | None
    activation: str | None
    probabilities: bool | None
    finite: bool


@dataclass(frozen=True)
class Facts:
    """`widths` are units or filters of the hidden layers; `from_logits` is None for losses that know no such thing."""

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

"""What one example looks like after decoding, before `preprocess`: what input, program and preflight share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of an example, without the batch dimension; None stands for a size that varies."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]


@dataclass(frozen=True)
class ExampleSpec:
    """`inputs` in the order of the features; `classes` are the label's names where the manifest has them.

    A model with one input gets that tensor, a model with several gets a dict by name.
    """

    inputs: tuple[TensorSpec, ...]
    label: TensorSpec
    classes: tuple[str, ...] | None = None

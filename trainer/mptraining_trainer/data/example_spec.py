"""One example after decoding, before `preprocess`: what input, program and preflight share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of an example, without the batch dimension; None is a size that varies."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]


@dataclass(frozen=True)
class ExampleSpec:
    """`inputs` in the order of the features, `labels` in the order of the job; `classes` are the manifest's names.

    A model with one input gets that tensor, a model with several a dict by name or, where its inputs are a list, a
    tuple; so do losses with the labels.
    """

    inputs: tuple[TensorSpec, ...]
    labels: tuple[TensorSpec, ...]
    classes: tuple[str, ...] | None = None
    weighted: bool = False

    @property
    def label(self) -> TensorSpec | None:
        """The only label; None where there are none or several."""
        return self.labels[0] if len(self.labels) == 1 else None

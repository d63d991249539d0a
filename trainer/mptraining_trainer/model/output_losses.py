"""Losses of a compiled model by output, from which predictions and ensembles know what an output means."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from mptraining_trainer import keras_internals
from mptraining_trainer.model.compiled import CompiledModel

# Functions of Keras' losses over classes that exclude one another, and over independent yes-or-no answers.
_CLASSES = frozenset(
    {
        *("categorical_crossentropy", "sparse_categorical_crossentropy", "categorical_focal_crossentropy"),
        "categorical_generalized_cross_entropy",
    }
)
_BINARY = frozenset({"binary_crossentropy", "binary_focal_crossentropy"})


class OutputLoss(NamedTuple):
    """The name of a loss function of Keras, and whether it takes logits."""

    loss: str
    from_logits: bool

    @property
    def activation(self) -> Literal["softmax", "sigmoid"] | None:
        """The function that makes probabilities of logits; None for a loss that is not about classes."""
        return "softmax" if self.loss in _CLASSES else "sigmoid" if self.loss in _BINARY else None


def output_losses(compiled: CompiledModel) -> dict[str, OutputLoss]:
    """Return the losses of Keras' own functions by output; the name of an only output is empty.

    A loss of the user's own is not in it.
    """
    named = keras_internals.losses_of_outputs(compiled.model, legacy=compiled.keras.legacy)
    # One of several outputs may be the only one with a loss.
    several = max(len(named), len(getattr(compiled.model, "output_names", None) or ())) > 1
    return {name if several else "": known for name, loss in named if (known := _of_loss(loss)) is not None}


def _of_loss(loss: Any) -> OutputLoss | None:
    function = getattr(loss, "fn", loss)
    if str(getattr(function, "__module__", "")).split(".")[0] not in ("keras", "tf_keras"):
        return None
    arguments = keras_internals.loss_arguments(loss)
    return OutputLoss(str(getattr(function, "__name__", "")), bool(arguments.get("from_logits", False)))

"""Losses of a compiled model by output, from which predictions and ensembles know what an output means."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import tensorflow as tf

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


def output_losses(compiled: CompiledModel | None) -> dict[str, OutputLoss]:
    """Return the losses of Keras' own functions by output; the name of an only output is empty.

    A loss of the user's own is not in it.
    """
    if compiled is None:
        return {}
    named = _tf_keras_losses(compiled.model) if compiled.keras.legacy else _keras_3_losses(compiled.model)
    # One of several outputs may be the only one with a loss.
    several = max(len(named), len(getattr(compiled.model, "output_names", None) or ())) > 1
    return {name if several else "": found for name, loss in named if (found := _of_loss(loss)) is not None}


def _keras_3_losses(model: Any) -> list[tuple[str, Any]]:
    container = model._compile_loss
    if container is None or not container.built:
        return []
    names = list(getattr(model, "output_names", None) or ())
    losses = [each for each in container._flat_losses or () if each.loss is not None]
    # Keras names each of several losses by its output; a list of outputs without names is in the order of the outputs.
    return [
        (each.name or (names[place] if len(names) == len(losses) else f"output_{place}"), each.loss)
        for place, each in enumerate(losses)
    ]


def _tf_keras_losses(model: Any) -> list[tuple[str, Any]]:
    container = model.compiled_loss
    if container is None or not container.built:
        return []
    losses = tf.nest.flatten(container._losses)
    names = list(container._output_names or ())
    return [
        (names[place] if len(names) == len(losses) else f"output_{place}", loss)
        for place, loss in enumerate(losses)
        if loss is not None
    ]


def _of_loss(loss: Any) -> OutputLoss | None:
    function = getattr(loss, "fn", loss)
    if str(getattr(function, "__module__", "")).split(".")[0] not in ("keras", "tf_keras"):
        return None
    arguments = getattr(loss, "_fn_kwargs", {})
    return OutputLoss(str(getattr(function, "__name__", "")), bool(arguments.get("from_logits", False)))

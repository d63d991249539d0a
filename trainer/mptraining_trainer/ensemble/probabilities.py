"""Losses and metrics of a model whose logits became probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from mptraining_api.problems import InvalidProgram

Activation = Literal["softmax", "sigmoid"] | None


def on_probabilities(given: Any, activations: Mapping[str, Activation]) -> Any:
    """Return losses or metrics, as they were passed to `compile`, for outputs to which `activations` were applied.

    The activations are by output; the name of an only output is empty. Names and functions stay as they are: those of
    Keras take probabilities. Raises InvalidProgram for an object of the user's own that cannot be created again.
    """
    if isinstance(given, Mapping):
        return {
            name: on_probabilities(each, {"": activations.get(name, activations.get(""))})
            for name, each in given.items()
        }
    if isinstance(given, list | tuple):
        # A list has one entry for each output, or is a list of metrics of an only output.
        several = list(activations.values()) if len(activations) == len(given) > 1 else None
        return [
            on_probabilities(each, {"": several[place]} if several else activations) for place, each in enumerate(given)
        ]
    if not hasattr(given, "get_config"):
        return given
    activation = activations.get("", next(iter(activations.values()), None))
    try:
        return type(given).from_config(config_on_probabilities(given.get_config(), activation))
    except (TypeError, ValueError, NotImplementedError) as error:
        line = " ".join(str(error).split())[:200]
        raise InvalidProgram(
            "spec.program.ensemble",
            f"{type(given).__name__} of the members cannot be created again: {line}",
            next_step="Give the class a get_config with the arguments of its constructor.",
        ) from None


def config_on_probabilities(config: Mapping[str, Any], activation: Activation) -> dict[str, Any]:
    """Return the config of a loss or metric for probabilities: `from_logits` is false, thresholds are moved."""
    changed = dict(config)
    if activation is None:
        return changed
    if changed.get("from_logits"):
        changed["from_logits"] = False
    if activation == "sigmoid":
        for name in ("threshold", "thresholds"):
            # A threshold of a metric without `from_logits` was compared with logits.
            if changed.get(name) is not None and not config.get("from_logits"):
                changed[name] = _moved(changed[name])
    return changed


def _moved(threshold: Any) -> Any:
    if isinstance(threshold, list | tuple):
        return [_moved(each) for each in threshold]
    return 1.0 / (1.0 + math.exp(-float(threshold)))

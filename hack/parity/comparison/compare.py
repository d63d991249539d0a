"""One training against the reference: equal within the bound, refused by name, or different."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from hack.parity.comparison.bounds import Bound, Variant, bound
from hack.parity.programs.program import Program
from hack.parity.training.environment import Numbers

Verdict = Literal["equal", "refused", "different", "not compared", "no program"]


# Callbacks that set the rate write these into the logs for later callbacks: they are no metrics of the model.
_RATES = frozenset({"lr", "learning_rate"})
# Refusals that only repeat an error of the program, or of Keras in it.
_RAISED = re.compile(r" raised [A-Z]\w+: ")


@dataclass(frozen=True)
class Compared:
    """`what` is the difference, or the sentence of the refusal; differences are shares, as in `Bound`."""

    variant: str
    verdict: Verdict
    what: str = ""
    weights: float | None = None
    metrics: float | None = None
    seconds: float = 0.0

    def to_document(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {key: value for key, value in asdict(self).items() if value not in ("", None)}


_SKIPPED = (
    "loss scaling skipped steps, which the sums over a replica's rows decide: Keras counts those in the loss, in the "
    "layers' statistics and, tf_keras, in the iterations; here a skipped step leaves nothing behind"
)


def compare(program: Program, variant: Variant, reference: Numbers, ours: Numbers) -> Compared:
    """Return the verdict on `ours`, which may be refused or failed; `reference` is the result of plain Keras."""
    limit = bound(program, variant)
    verdict: Verdict
    if reference.failed is not None:
        verdict, what = "no program", reference.failed
    elif not all(math.isfinite(epoch.get("loss", 0.0)) for epoch in reference.epochs):
        verdict, what = "no program", "plain Keras trains to numbers that are not finite"
    elif ours.refused is not None:
        # Under plain Keras the same program raised nothing.
        raised = _RAISED.search(ours.refused)
        verdict, what = ("different", f"fails: {ours.refused}") if raised else ("refused", ours.refused)
    elif ours.failed is not None:
        verdict, what = "different", f"fails: {ours.failed}"
    elif reference.skipped or (ours.skipped and program.policy == "mixed_float16"):
        verdict, what = "not compared", _SKIPPED
    elif limit.weights is None:
        verdict, what = "not compared", limit.because
    else:
        weights = _weights_apart(reference.weights, ours.weights)
        metrics, worst = _metrics_apart(reference.epochs, ours.epochs)
        what = _what(limit, weights, metrics, worst)
        verdict = "different" if what else "equal"
        return Compared(variant.name, verdict, what, _plain(weights), _plain(metrics), ours.seconds)
    return Compared(variant.name, verdict, what, seconds=ours.seconds)


def apart(first: Numbers, second: Numbers) -> tuple[float, float]:
    """Return the difference between two trainings of the same program: weights, metrics; infinite for
    different shapes.
    """
    weights, (metrics, _) = _weights_apart(first.weights, second.weights), _metrics_apart(first.epochs, second.epochs)
    return (weights if isinstance(weights, float) else math.inf, metrics if isinstance(metrics, float) else math.inf)


def reason(refusal: str) -> str:
    """Return a refusal without the names and numbers of this program, so that equal reasons count as one."""
    plain = re.sub(r"parity_[0-9a-f]+", "PROGRAM", refusal)
    plain = re.sub(r"/\S+", "PATH", plain)
    return re.sub(r"\b\d[\d.e+-]*", "N", plain)[:200]


def _weights_apart(reference: tuple[Any, ...], ours: tuple[Any, ...]) -> float | str:
    if len(reference) != len(ours):
        return f"{len(ours)} weights, {len(reference)} in Keras"
    apart = 0.0
    for number, pair in enumerate(zip(reference, ours, strict=True)):
        keras, here = map(np.asarray, pair)
        if keras.shape != here.shape:
            return f"weight {number} has the shape {here.shape}, {keras.shape} in Keras"
        if keras.size == 0:
            continue
        if keras.dtype.kind not in "fV" or not np.isfinite(keras.astype(np.float64)).all():
            apart = max(apart, 0.0 if np.array_equal(keras, here) else math.inf)
            continue
        keras, here = keras.astype(np.float64), here.astype(np.float64)
        share = np.abs(keras - here).max() / max(1.0, np.abs(keras).max())
        apart = max(apart, float(share) if math.isfinite(share) else math.inf)
    return apart


def _metrics_apart(
    reference: tuple[dict[str, float], ...], ours: tuple[dict[str, float], ...]
) -> tuple[float | str, str]:
    """Return the largest difference, and its metric and epoch."""
    if len(reference) != len(ours):
        return f"{len(ours)} epochs are reported, {len(reference)} by Keras", ""
    names = {name for epoch in reference for name in epoch}
    apart, worst = 0.0, ""
    for number, (keras, here) in enumerate(zip(reference, ours, strict=True), start=1):
        if missing := sorted(name for name in set(keras) - set(here) - _RATES if math.isfinite(keras[name])):
            return f"epoch {number} reports no {', '.join(missing)}; reported: {', '.join(sorted(here))}", ""
        # The loss that a step minimizes is reported here even if tf_keras reports none.
        if more := sorted(set(here) - names - _RATES - {"loss", "val_loss"}):
            return f"epoch {number} reports {', '.join(more)}; Keras: {', '.join(sorted(keras))}", ""
        for name, value in keras.items():
            if name in _RATES:
                continue
            if not math.isfinite(value):
                if math.isfinite(here.get(name, value)):
                    apart, worst = math.inf, f"{name} of epoch {number}: {here[name]:.7g}, {value} in Keras"
                continue
            share = abs(value - here[name]) / max(1.0, abs(value))
            if share > apart or not math.isfinite(share):
                apart, worst = share, f"{name} of epoch {number}: {here[name]:.7g}, {value:.7g} in Keras"
    return apart, worst


def _what(limit: Bound, weights: float | str, metrics: float | str, worst: str) -> str:
    differences = []
    if isinstance(weights, str):
        differences.append(weights)
    elif limit.weights is not None and not weights <= limit.weights:
        differences.append(f"weights differ by {weights:.2g}, more than {limit.weights:g}")
    if limit.metrics is None:
        return "; ".join(differences)
    if isinstance(metrics, str):
        differences.append(metrics)
    elif not metrics <= limit.metrics:
        differences.append(f"{worst}, more than {limit.metrics:g} apart")
    return "; ".join(differences)


def _plain(apart: float | str) -> float | None:
    return apart if isinstance(apart, float) and math.isfinite(apart) else None

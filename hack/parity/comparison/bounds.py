"""The bounds of a training here against plain `fit`, and their reasons: one table, scanned from top to bottom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from hack.parity.programs.program import Program

# These divide by the square root of a mean of squares: where a gradient is nearly zero, a change in its last digit
# changes the update by a share of the learning rate.
_ADAPTIVE = frozenset({"Adam", "AdamW", "RMSprop", "Adadelta", "Adamax", "Nadam", "Adafactor", "Adagrad", "Ftrl"})


# A few last digits of float32: a difference that only a comparison of bits finds is no instability of the program.
NOISE = 1e-6


@dataclass(frozen=True)
class Variant:
    """The place of a training: `replicas` on logical CPU devices, or one on each of `workers` processes."""

    name: str
    replicas: int = 1
    workers: int = 1


ONE = Variant("1 replica")
TWO = Variant("2 replicas", replicas=2)
WORKERS = Variant("2 workers", replicas=1, workers=2)


@dataclass(frozen=True)
class Bound:
    """Largest difference of a weight, and of a metric, each as a share of max(1, the largest value of the reference).

    None: not compared.
    """

    weights: float | None
    metrics: float | None
    because: str


def _reordered(p: Program, v: Variant) -> bool:
    return v != ONE or p.remainder == "PadAndMask" or p.accumulation > 1


_Applies = Callable[[Program, Variant], bool]
_TABLE: tuple[tuple[_Applies, Bound], ...] = (
    (
        lambda p, v: v != ONE and bool({"dropout", "dropouts"} & {*p.extras}),
        Bound(None, None, "replicas draw masks of their own, as they should; plain fit has one replica"),
    ),
    (
        lambda p, v: v != ONE and "batchnorm" in p.extras,
        Bound(None, None, "each replica normalizes by its own rows, as under any strategy; plain fit has one replica"),
    ),
    (
        lambda p, _: (
            p.accumulation > 1
            and p.inputs.startswith("tokens")
            and p.generation == "Keras3"
            and p.optimizer in _ADAPTIVE
        ),
        Bound(
            None,
            None,
            "Keras 3 squares the gradients of a token that a batch has twice one by one; over accumulated batches, "
            "here as with its own gradient_accumulation_steps (equal to the bit), their sum",
        ),
    ),
    (
        lambda p, _: (
            p.policy == "mixed_float16"
            and p.override in ("train_step", "both_steps")
            and bool({"dropout", "dropouts"} & {*p.extras})
        ),
        Bound(None, None, "a step of the user's trains under another policy, and masks are drawn in the policy's type"),
    ),
    (
        lambda p, v: v != ONE and "float8" in p.extras and p.remainder == "PadAndMask",
        Bound(None, None, "the ranges of FP8 cover a replica's padded rows, which repeat others of the data"),
    ),
    (
        lambda p, v: "float8" in p.extras and _reordered(p, v),
        Bound(1e-1, 1e-1, "2 or 3 bits of mantissa: a last digit of float32 turns a rounding"),
    ),
    (
        lambda p, v: v != ONE and p.optimizer == "Lion",
        Bound(2e-2, 2e-2, "steps by the sign of a gradient, which the order of additions may turn"),
    ),
    (
        lambda p, v: p.policy == "mixed_float16" and p.override in ("train_step", "both_steps"),
        Bound(3e-2, 5e-2, "a step of the user's is not scaled: bfloat16 or float32 is taken, with a notice"),
    ),
    (
        lambda p, v: p.policy != "float32" and p.optimizer in _ADAPTIVE and _reordered(p, v),
        Bound(1e-1, 5e-2, "where rounding turns a gradient's sign, an update of the rate's size turns"),
    ),
    (
        lambda p, v: p.policy == "mixed_bfloat16" and v != ONE,
        Bound(3e-2, 3e-2, "8 bits of mantissa, and gradients are added in another order"),
    ),
    (
        lambda p, v: p.policy == "mixed_float16" and v != ONE,
        Bound(1e-2, 1e-2, "11 bits of mantissa, and gradients are added in another order"),
    ),
    (
        lambda p, _: p.policy == "mixed_bfloat16" and (p.remainder == "PadAndMask" or p.accumulation > 1),
        Bound(3e-2, 3e-2, "8 bits of mantissa, and sums over padded or split batches are made in another order"),
    ),
    (
        lambda p, _: p.policy == "mixed_float16" and (p.remainder == "PadAndMask" or p.accumulation > 1),
        Bound(1e-2, 1e-2, "11 bits of mantissa, and sums over padded or split batches are made in another order"),
    ),
    (
        lambda p, v: p.optimizer in _ADAPTIVE and _reordered(p, v),
        Bound(5e-4, 2e-4, "sums in another order, divided by the root of a mean of squares that may be nearly zero"),
    ),
    (_reordered, Bound(2e-6, 5e-6, "float32, sums in another order")),
    (
        lambda p, _: p.outputs == "one" and p.ema == "none" and not {"l2", "activity", "add_loss"} & {*p.extras},
        Bound(0.0, 1e-6, "the same operations on the same batch; metrics are added up in another order"),
    ),
    (
        lambda *_: True,
        Bound(2e-7, 1e-6, "the same operations on the same batch; gradients of several losses are added up likewise"),
    ),
)


# Programs whose weights are compared and whose reported numbers are not, with the reason.
_NUMBERS_OF_THEIR_OWN: tuple[tuple[_Applies, str], ...] = (
    (
        lambda p, v: v != ONE and p.task == "tokens" and p.override in ("test_step", "both_steps"),
        "in a test_step of the user's each replica counts its own mask (docs/guide/your-program.md)",
    ),
    (
        lambda p, v: v != ONE and p.task == "tokens" and bool({"add_loss", "activity"} & {*p.extras}),
        "with a mask, add_loss counts the padded rows of validation's last batch (docs/guide/your-program.md)",
    ),
    (
        lambda p, v: v != ONE and p.head == "rank1",
        "a metric of numbers without an axis is one number a batch, and replicas have more batches, of other sizes",
    ),
    (
        lambda p, _: p.generation == "Legacy" and p.override == "compute_loss_super",
        "tf_keras reports what its compiled losses saw; here the loss that is trained by is reported",
    ),
)


def bound(program: Program, variant: Variant) -> Bound:
    """Return the first row of the table that applies."""
    limit = next(row for applies, row in _TABLE if applies(program, variant))
    for applies, because in _NUMBERS_OF_THEIR_OWN:
        if applies(program, variant):
            return replace(limit, metrics=None, because=because)
    return limit

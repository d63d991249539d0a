"""The goals beside what was measured. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hardware.cells import HEADLINE, SIZES, Cell, Policy, mixed_policy
from hardware.results import Comparison, Results
from hardware.schedule import memory_limits

# The claims that the project started from: Keras' guide "Mixed precision" (3 times on GPUs with Tensor Cores, 60% on
# TPUs, twice the batch), and the speedups of 4 and 8 GPUs by the book that its issues name.
MIXED_ON_GPU, MIXED_ON_TPU, LARGER_BATCH = 3.0, 1.6, 2.0
SCALING = {4: 3.8, 8: 7.3}
_TENSOR_CORES = 7.0
LEFT_OUT = "left out for lack of time"
_SMALL = "needs the models of an accelerator's size: run without --small"


@dataclass(frozen=True)
class Goal:
    """`verdict` begins with met, not met, not decided or not measured here."""

    claim: str
    goal: str
    measured: str
    verdict: str


def goals(results: Results) -> list[Goal]:
    """Return the goals in the order of the page."""
    found = [_faster_on_gpu(results), _faster_on_tpu(results), _larger_batch(results)]
    found += [_scaling(results, count, least) for count, least in SCALING.items()]
    return [*found, _overflow(results), _resume(results), _determinism(results)]


def headline(results: Results, policy: Policy) -> Cell:
    """Return the cell of the goals' model under a policy."""
    return Cell("policies", HEADLINE, policy, SIZES[results.scale][HEADLINE].batch, xla=True)


def one(results: Results, section: str, **fields: object) -> Cell | None:
    """Return the first cell of a section with these fields."""
    for turn in results.turns():
        if turn.cell.section == section and all(getattr(turn.cell, name) == value for name, value in fields.items()):
            return turn.cell
    return None


def single(results: Results) -> Cell | None:
    """Return the cell of one device with which those of several are compared."""
    many = one(results, "scaling")
    assert many is not None
    return one(results, "policies", model=many.model, policy=many.policy, xla=many.xla, source=many.source)


def _faster_on_gpu(results: Results) -> Goal:
    claim = f"mixed precision on a V100 class GPU, {HEADLINE} images per second against float32"
    ratio = results.comparison(headline(results, "mixed_float16"), headline(results, "float32"))
    tensor_cores = results.machine.kind == "gpu" and (results.machine.capability or 0.0) >= _TENSOR_CORES
    needs = None if tensor_cores else "needs a GPU with Tensor Cores"
    return _at_least(results, claim, ratio, MIXED_ON_GPU, needs)


def _faster_on_tpu(results: Results) -> Goal:
    claim = f"mixed precision on a TPU, {HEADLINE} images per second against float32"
    ratio = results.comparison(headline(results, "mixed_bfloat16"), headline(results, "float32"))
    return _at_least(results, claim, ratio, MIXED_ON_TPU, None if results.machine.kind == "tpu" else "needs a TPU")


def _larger_batch(results: Results) -> Goal:
    claim = f"largest batch of {HEADLINE} that fits into the device's memory against float32"
    needs = "needs a GPU or a TPU, whose memory is its own" if results.machine.kind == "cpu" else None
    plain, full = memory_limits(results, "float32")
    mixed, _ = memory_limits(results, mixed_policy(results.machine))
    if plain and full is None:
        needs = needs or f"float32 trained {plain} examples, the largest batch tried"
    ratio = mixed / plain if mixed and plain else None
    goal = _at_least(
        results,
        claim,
        None if ratio is None else Comparison(ratio, ratio, ratio),
        LARGER_BATCH,
        needs,
        section="memory",
    )
    return replace(goal, measured=f"{goal.measured}: {mixed} against {plain}") if goal.measured else goal


def _scaling(results: Results, count: int, least: float) -> Goal:
    claim = f"{count} GPUs, {HEADLINE} images per second against one"
    many, alone = one(results, "scaling", devices=count), single(results)
    assert many is not None
    needs = f"needs {count} GPUs" if results.machine.kind != "gpu" else many.needs
    ratio = results.comparison(many, alone) if alone is not None else None
    return _at_least(results, claim, ratio, least, needs, section="scaling")


def _overflow(results: Results) -> Goal:
    claim = "gradients that overflow float16: steps skipped and the last loss scale"
    cell = one(results, "overflow")
    assert cell is not None
    if cell.needs:
        return Goal(claim, "as Keras", "", f"not measured here: {cell.needs}")
    found = results.measured(cell)
    if not found:
        return Goal(claim, "as Keras", "", _absent(results, "overflow"))
    values = found[-1].values
    ours = (values["skipped_steps"], values["loss_scale"])
    keras = (values["keras_skipped_steps"], values["keras_loss_scale"])
    measured = f"{ours[0]} and {ours[1]:g}; Keras {keras[0]} and {keras[1]:g}"
    return Goal(claim, "as Keras' LossScaleOptimizer", measured, _verdict(ours == keras and ours[0] > 0))


def _resume(results: Results) -> Goal:
    claim = "a run in two halves against a straight one, on the same device"
    cell = one(results, "resume")
    assert cell is not None
    found = results.measured(cell)
    if not found:
        return Goal(claim, "bit-equal weights", "", _absent(results, "resume"))
    values = found[-1].values
    equal = values["weights"] == values["straight_weights"]
    return Goal(claim, "bit-equal weights", "equal" if equal else "different", _verdict(equal))


def _determinism(results: Results) -> Goal:
    claim = "the same job twice with `training.deterministic: Always`"
    cell = one(results, "determinism", deterministic=True)
    assert cell is not None
    weights = [one.values["weights"] for one in results.measured(cell)]
    if len(weights) < 2:
        return Goal(claim, "bit-equal weights", "", _absent(results, "determinism"))
    equal = len(set(weights)) == 1
    return Goal(claim, "bit-equal weights", "equal" if equal else "different", _verdict(equal))


def _absent(results: Results, section: str) -> str:
    """Return why a goal of the section has no figure."""
    failed = any(one.outcome == "failed" and one.key.partition("/")[0] == section for one in results.rounds)
    return f"not measured here: {'a measurement failed, see below' if failed else LEFT_OUT}"


def _at_least(
    results: Results, claim: str, ratio: Comparison | None, least: float, needs: str | None, section: str = "policies"
) -> Goal:
    goal = Goal(claim, f"at least {least:g}", "" if ratio is None else str(ratio), "")
    if needs is None and results.scale == "small":
        needs = _SMALL
    if needs:
        # A ratio of another device, or of another model, is not the goal's.
        return replace(goal, measured="", verdict=f"not measured here: {needs}")
    if ratio is None:
        return replace(goal, verdict=_absent(results, section))
    # Rounds that differ decide the goal only where all are on one side of it.
    if not ratio.agrees and ratio.low < least <= ratio.high:
        return replace(goal, verdict="not decided: the rounds differ")
    return replace(goal, verdict=_verdict(ratio.ratio >= least if ratio.agrees else ratio.low >= least))


def _verdict(met: bool) -> str:
    return "met" if met else "**not met**"

"""`precision.policy: Measure`: a few steps of every policy the device has, on the real model and data, decide.

Each trial begins with the same weights, seeds and batches, and is thrown away: training then begins as if the policy
had been written in the job.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from mptraining_api.events import Trial
from mptraining_trainer.distribution.coordination import mean_over_workers
from mptraining_trainer.numerics.recovery import PrecisionState
from mptraining_trainer.reporting.telemetry import Telemetry
from mptraining_trainer.training.build import BuildResult, RunContext, assemble

# The mean loss of the first steps may differ from float32's by this share: bfloat16 rounds each product to 0.4%, and
# ten steps of a training that works differ by 1% at most (measured: MLP, CNN, ResNet; see docs/precision.md).
TOLERANCE = 0.05
_LOSS_STEPS = 10
# A policy that is less than this much faster is not worth 16 bits, nor a difference that another run would show.
_MARGIN = 0.03
_ROUNDS = 7
# Long enough that the call itself does not count.
_ROUND_SECONDS = 0.1
_MOST_STEPS = 64


def measured(context: RunContext, available: Sequence[str], telemetry: Telemetry) -> PrecisionState:
    """Tries `available`, the safest first, and says what it saw. Every worker must call it; all come to the same."""
    trials = []
    if len(available) > 1:
        expected: list[float] = []
        for policy in available:
            seconds, losses = _tried(assemble(context, policy), telemetry.now)
            (seconds,) = mean_over_workers(context.strategy, [seconds])
            expected = expected or losses
            trials.append(judged(policy, seconds, losses, expected))
    policy = chosen(trials) if trials else available[0]
    telemetry.notice("Measured", f"{in_words(trials)}: {policy}")
    return PrecisionState(asked="Measure", policy=policy, measured=tuple(trials))


def judged(policy: str, seconds: float, losses: Sequence[float], expected: Sequence[float]) -> Trial:
    """What a trial of `seconds` a step is worth. `losses` are those of its applied steps, `expected` float32's.

    A step that loss scaling left out moved no weight, so that the n-th applied step is compared with float32's n-th.
    """
    both = min(len(losses), len(expected))
    loss = statistics.fmean(losses) if losses else math.nan
    ours, theirs = (statistics.fmean(each[:both]) if both else math.nan for each in (losses, expected))
    agrees = math.isfinite(ours) and math.isfinite(theirs) and abs(ours - theirs) <= TOLERANCE * abs(theirs)
    return Trial(policy=policy, step_seconds=seconds, loss=loss if math.isfinite(loss) else None, agrees=agrees)


def chosen(trials: Sequence[Trial]) -> str:
    """The fastest policy that agrees; the first of the trials, float32, unless another is faster by the margin."""
    safest = trials[0]
    limit = safest.step_seconds * (1 - _MARGIN)
    faster = [trial for trial in trials[1:] if trial.agrees and trial.step_seconds < limit]
    return min(faster, key=lambda trial: trial.step_seconds, default=safest).policy


def in_words(trials: Sequence[Trial]) -> str:
    if not trials:
        return "this device computes one policy without emulating it, so nothing was timed"
    return ", ".join(
        f"{trial.policy} {1000 * trial.step_seconds:.3g} ms a step (loss "
        f"{'not finite' if trial.loss is None else format(trial.loss, '.4g')}"
        f"{'' if trial.agrees else f', more than {TOLERANCE:.0%} from float32'})"
        for trial in trials
    )


def _tried(built: BuildResult, now: Callable[[], float]) -> tuple[float, list[float]]:
    """Seconds a step, without waiting for data, and the losses of the first steps that were applied."""
    iterator = built.feed(built.context.first, _LOSS_STEPS + (_ROUNDS + 1) * _MOST_STEPS)
    first = [built.loop.execute(iterator, 1) for _ in range(_LOSS_STEPS)]
    losses = [execution.loss for execution in first if execution.applied_steps]

    def timed(steps: int) -> float:
        before = now()
        execution = built.loop.execute(iterator, steps)
        return (now() - before - (execution.waited_seconds or 0.0)) / steps

    # As many steps on every worker, or a collective operation would wait for ever.
    (one,) = mean_over_workers(built.context.strategy, [timed(1)])
    steps = max(1, min(_MOST_STEPS, int(_ROUND_SECONDS / max(one, 1e-9))))
    return statistics.median(timed(steps) for _ in range(_ROUNDS)), losses

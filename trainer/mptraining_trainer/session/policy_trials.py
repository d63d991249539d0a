"""Trials for `precision.policy: Measure`: a few steps of every policy of the device, on the real model and data.

Each trial begins with the same weights, seeds and batches, and its result is discarded: training then begins as if the
chosen policy had been written in the job.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from mptraining_api.events import Trial
from mptraining_trainer.devices.coordination import mean_over_workers
from mptraining_trainer.numerics.recovery import PrecisionState
from mptraining_trainer.report.telemetry import Telemetry
from mptraining_trainer.session.build import BuildResult, RunContext, assemble

# Relative tolerance of the mean loss of the first steps against float32: bfloat16 rounds each product to 0.4%, and the
# losses of ten steps of a sound training differ by 1% at most (measured: MLP, CNN, ResNet).
TOLERANCE = 0.05
_LOSS_STEPS = 10
# A smaller speedup is not worth 16 bits, and another run might not reproduce it.
_MARGIN = 0.03
_ROUNDS = 7
# A round is long enough that the overhead of the call is negligible.
_ROUND_SECONDS = 0.1
_MOST_STEPS = 64


def measure_policies(context: RunContext, available: Sequence[str], telemetry: Telemetry) -> PrecisionState:
    """Try the policies `available`, the safest first, and report the result. Every worker must call it; all agree."""
    trials = []
    if len(available) > 1:
        expected: list[float] = []
        for policy in available:
            seconds, losses = _run_trial(assemble(context, policy), telemetry.now)
            (seconds,) = mean_over_workers(context.strategy, [seconds])
            expected = expected or losses
            trials.append(evaluate_trial(policy, seconds, losses, expected))
    policy = choose_policy(trials) if trials else available[0]
    telemetry.notice("Measured", f"{describe_trials(trials)}: {policy}")
    return PrecisionState(requested_policy="Measure", policy=policy, trials=tuple(trials))


def evaluate_trial(policy: str, seconds: float, losses: Sequence[float], expected: Sequence[float]) -> Trial:
    """Return the trial of `seconds` per step. `losses` are those of its applied steps, `expected` float32's.

    A step that loss scaling skipped changed no weight, so the n-th applied step is compared with float32's n-th.
    """
    both = min(len(losses), len(expected))
    loss = statistics.fmean(losses) if losses else math.nan
    ours, theirs = (statistics.fmean(series[:both]) if both else math.nan for series in (losses, expected))
    agrees = math.isfinite(ours) and math.isfinite(theirs) and abs(ours - theirs) <= TOLERANCE * abs(theirs)
    return Trial(policy=policy, step_seconds=seconds, loss=loss if math.isfinite(loss) else None, agrees=agrees)


def choose_policy(trials: Sequence[Trial]) -> str:
    """Return the fastest policy that agrees; float32, the first trial, unless another is faster by the margin."""
    safest = trials[0]
    limit = safest.step_seconds * (1 - _MARGIN)
    faster = [trial for trial in trials[1:] if trial.agrees and trial.step_seconds < limit]
    return min(faster, key=lambda trial: trial.step_seconds, default=safest).policy


def describe_trials(trials: Sequence[Trial]) -> str:
    if not trials:
        return "this device computes one policy without emulating it, so nothing was timed"
    return ", ".join(
        f"{trial.policy} {1000 * trial.step_seconds:.3g} ms a step (loss "
        f"{'not finite' if trial.loss is None else format(trial.loss, '.4g')}"
        f"{'' if trial.agrees else f', more than {TOLERANCE:.0%} from float32'})"
        for trial in trials
    )


def _run_trial(built: BuildResult, now: Callable[[], float]) -> tuple[float, list[float]]:
    """Return the seconds per step, without waiting for data, and the losses of the first applied steps."""
    iterator = built.make_iterator(built.context.first, _LOSS_STEPS + (_ROUNDS + 1) * _MOST_STEPS)
    first = [built.loop.execute(iterator, 1) for _ in range(_LOSS_STEPS)]
    losses = [execution.loss for execution in first if execution.applied_steps]

    def timed(steps: int) -> float:
        before = now()
        execution = built.loop.execute(iterator, steps)
        return (now() - before - (execution.waited_seconds or 0.0)) / steps

    # Every worker must run the same number of steps; otherwise a collective operation would wait forever.
    (step_seconds,) = mean_over_workers(built.context.strategy, [timed(1)])
    steps = max(1, min(_MOST_STEPS, int(_ROUND_SECONDS / max(step_seconds, 1e-9))))
    return statistics.median(timed(steps) for _ in range(_ROUNDS)), losses

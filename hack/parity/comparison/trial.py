"""One program: trained by plain `fit` and in each variant, compared."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hack.parity.comparison.bounds import NOISE, ONE, TWO, Variant
from hack.parity.comparison.compare import Compared, apart, compare
from hack.parity.programs.program import Program
from hack.parity.training import plain_fit, trainer_run
from hack.parity.training.environment import Numbers, arrays_of, module_of


def variants(program: Program) -> tuple[Variant, ...]:
    """Return the variants that this process trains; two workers are separate processes."""
    # tf_keras itself refuses stateful RNNs on several replicas.
    alone = program.batch % 2 or (program.legacy and program.inputs == "fixed")
    return (ONE,) if alone else (ONE, TWO)


def attempt(program: Program, folder: Path) -> tuple[list[Compared], Numbers]:
    """Train and compare it in each variant; return also the result of plain `fit`.

    `folder` keeps records and the program's module. Call `trainer_run.prepare` before.
    """
    with module_of(program, folder / "programs") as module, _inside(folder / "scratch"):
        arrays, validation = arrays_of(program, module)

        def plain(*, nudged: bool = False) -> Numbers:
            return plain_fit.train(program, module, arrays, validation, nudged=nudged)

        reference = plain()
        verdicts = []
        for variant in variants(program):
            if reference.failed is not None:
                verdicts.append(compare(program, variant, reference, Numbers()))
                break

            def trained(variant: Variant = variant) -> Numbers:
                return trainer_run.train(
                    program, module, arrays, validation, records=folder / "records", replicas=variant.replicas
                )

            compared = compare(program, variant, reference, trained())
            if compared.verdict == "different" and compared.weights is not None and compared.metrics is not None:
                if max(compared.weights, compared.metrics) < NOISE:
                    compared = _without_graph_optimizer(compared, plain, trained)
                else:
                    compared = _unless_unstable(compared, reference, plain)
            verdicts.append(compared)
    return verdicts, reference


def _without_graph_optimizer(
    compared: Compared, plain: Callable[[], Numbers], trained: Callable[[], Numbers]
) -> Compared:
    """Return `compared`, as equal if both trainings agree to the bit without TensorFlow's graph optimizer.

    It fuses operations depending on their neighbours, and a job's graph has more operations around a step than `fit`'s.
    """
    import tensorflow as tf

    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        weights, metrics = apart(plain(), trained())
    finally:
        tf.config.optimizer.set_experimental_options(before | {"disable_meta_optimizer": False})
    if weights > 0.0 or metrics > NOISE:
        return compared
    what = f"to the bit without TensorFlow's graph optimizer; with it {compared.what}"
    return replace(compared, verdict="equal", what=what)


# Rounding in every operation moves a training by about as much as a last digit of its first weights: not equally much.
_UNSTABLE = 10


def _unless_unstable(compared: Compared, reference: Numbers, plain: Callable[..., Numbers]) -> Compared:
    """Return `compared`, as not compared if plain Keras itself changes as much by the last digit of its first weights.

    The difference is then rounding that the program amplifies: an adaptive optimizer's step by a gradient of nearly
    zero, or a training that diverges.
    """
    moved = plain(nudged=True)
    weights, metrics = apart(reference, moved)
    differs = (compared.weights or 0.0) > _UNSTABLE * weights or (compared.metrics or 0.0) > _UNSTABLE * metrics
    if moved.failed is not None or differs:
        return compared
    what = f"plain Keras moves by {weights:.2g} itself if the last digit of its first weights changes; {compared.what}"
    return replace(compared, verdict="not compared", what=what)


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Change into `folder`, where callbacks write their files."""
    folder.mkdir(parents=True, exist_ok=True)
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)

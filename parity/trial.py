"""One program: trained by plain `fit` and in each variant, compared."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from parity import plain_fit, trainer_run
from parity.bounds import ONE, TWO, Variant
from parity.compare import Compared, compare
from parity.ground import Numbers, arrays_of, module_of
from parity.program import Program


@dataclass(frozen=True)
class Tried:
    """What came of a program in each variant; `reference` is what plain `fit` made of it."""

    program: Program
    compared: tuple[Compared, ...]
    reference: Numbers
    seconds: float

    @property
    def fit_seconds(self) -> float:
        return self.reference.seconds

    @property
    def different(self) -> tuple[Compared, ...]:
        """The variants that are neither equal nor refused."""
        return tuple(one for one in self.compared if one.verdict == "different")


def variants(program: Program) -> tuple[Variant, ...]:
    """Where it is trained in this process; two workers are processes of their own."""
    return (ONE,) if program.batch % 2 else (ONE, TWO)


def attempt(program: Program, folder: Path, wanted: tuple[Variant, ...] | None = None) -> Tried:
    """Trains and compares it; `folder` keeps records and the program's module. Call `trainer_run.prepare` before."""
    began = time.monotonic()
    with module_of(program, folder / "programs") as module, _inside(folder / "scratch"):
        arrays, validation = arrays_of(program, module)
        reference = plain_fit.train(program, module, arrays, validation)
        compared = []
        for variant in wanted or variants(program):
            if reference.failed is None:
                ours = trainer_run.train(
                    program, module, arrays, validation, records=folder / "records", replicas=variant.replicas
                )
            else:
                ours = Numbers()
            compared.append(compare(program, variant, reference, ours))
            if reference.failed is not None:
                break
    return Tried(program, tuple(compared), reference, time.monotonic() - began)


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Callbacks write where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)

"""Python's and NumPy's global random states, which a script draws from: what the trainer adds must not move them."""

from __future__ import annotations

import random  # noqa: TID251 - kept as it is, not drawn from
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Puts both states back at the end; Keras 3 draws the seed of its global generator from Python's."""
    python, of_numpy = random.getstate(), np.random.get_state()  # noqa: TID251
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(of_numpy)  # noqa: TID251

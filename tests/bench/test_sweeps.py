"""The net of the bench of sweeps, and a search of two trials."""

from __future__ import annotations

import numpy as np
import pytest

from bench.sweeps.__main__ import search
from bench.sweeps.net import Digits, Net

ARGUMENTS = {"rate": 0.1, "momentum": 0.9, "decay": 1e-5, "dropout": 0.2, "batch": 64}


@pytest.fixture(scope="module")
def digits() -> Digits:
    return Digits.load()


def test_the_net_learns_and_continues_bit_for_bit(digits: Digits) -> None:
    net = Net.create(32, seed=1)
    whole = net.train(digits, ARGUMENTS, epochs=4)
    parts = net.train(digits, ARGUMENTS, epochs=1).train(digits, ARGUMENTS, epochs=4)
    assert all(np.array_equal(one, other) for one, other in zip(whole.weights, parts.weights, strict=True))
    assert net.epochs == 0
    assert whole.accuracy(digits) > 0.9


def test_its_gradient_is_the_slope_of_its_loss(digits: Digits) -> None:
    """Without momentum and dropout a step is minus the rate times the gradient: here by differences, in float64."""
    arguments = ARGUMENTS | {"momentum": 0.0, "decay": 0.0, "dropout": 0.0, "rate": 1.0}
    images, labels = digits.train[0][:50], digits.train[1][:50]
    net = Net.create(16, seed=3)

    def loss(changed: np.ndarray) -> float:
        values = images.astype(np.float64)
        for number, weight in enumerate((net.weights[0], changed, net.weights[2])):
            values = values @ weight.astype(np.float64)
            values = np.maximum(values, 0) if number < 2 else values
        values -= values.max(axis=1, keepdims=True)
        return float(np.mean(np.log(np.exp(values).sum(axis=1)) - values[np.arange(50), labels]))

    before = net.weights[1].astype(np.float64)
    shift = np.zeros_like(before)
    shift[2, 5] = 1e-5
    slope = (loss(before + shift) - loss(before - shift)) / 2e-5
    net._step(images, labels, arguments)
    assert before[2, 5] - net.weights[1][2, 5] == pytest.approx(slope, rel=1e-3, abs=1e-6)


def test_a_search_counts_its_epochs(digits: Digits) -> None:
    found = search("Random", 1, digits, trials=2)
    assert (len(found.status.trials or ()), found.epochs) == (2, 54)
    halved = search("Hyperband", 1, digits, trials=3)
    # Three trials of one epoch, the best of them continues to 3, 9 and 27.
    assert halved.epochs == 3 + 26
    assert halved.best > 0

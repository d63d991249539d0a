"""A multilayer perceptron on scikit-learn's digits in plain NumPy: a trial takes a fraction of a second on one core.

The net is two hidden layers of one width with ReLU and dropout, softmax cross-entropy, SGD with momentum and weight
decay. It stands for the trainer here because a sweep of 30 trials over ten seeds and three algorithms is a thousand
trainings. Its training can be continued, and more epochs in two parts are bit for bit one longer training.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

TRAIN = 1437
Array = NDArray[np.float32]


@dataclass(frozen=True)
class Digits:
    """1,437 digits to train on and 360 held out, as demo/digits.py divides them; pixels from 0 to 1."""

    train: tuple[Array, NDArray[np.int64]]
    held_out: tuple[Array, NDArray[np.int64]]

    @classmethod
    def load(cls) -> Digits:
        # Its import takes most of a second, in each process that collects the tests.
        from sklearn.datasets import load_digits

        digits = load_digits()
        order = np.random.default_rng(7).permutation(len(digits.data))
        images, labels = (digits.data / 16).astype(np.float32)[order], digits.target[order].astype(np.int64)
        return cls((images[:TRAIN], labels[:TRAIN]), (images[TRAIN:], labels[TRAIN:]))


@dataclass
class Net:
    """A net in training: weights, momenta, random state, and the epochs that it has trained for."""

    weights: list[Array]
    biases: list[Array]
    random: np.random.Generator
    velocities: list[Array] = field(default_factory=list)
    epochs: int = 0

    @classmethod
    def create(cls, width: int, seed: int) -> Net:
        random = np.random.default_rng(seed)
        sizes = [64, width, width, 10]
        weights = [
            (random.standard_normal((rows, columns)) * np.sqrt(2 / rows)).astype(np.float32)
            for rows, columns in itertools.pairwise(sizes)
        ]
        biases = [np.zeros(columns, np.float32) for columns in sizes[1:]]
        return cls(weights, biases, random, [np.zeros_like(each) for each in (*weights, *biases)])

    def train(self, digits: Digits, arguments: dict[str, Any], *, epochs: int) -> Net:
        """Return a copy that has trained for `epochs` in all. `arguments` are rate, momentum, decay, dropout, batch."""
        net = copy.deepcopy(self)
        images, labels = digits.train
        with np.errstate(all="ignore"):
            while net.epochs < epochs:
                order = net.random.permutation(len(images))
                batch = int(arguments["batch"])
                for begin in range(0, len(order) - batch + 1, batch):
                    rows = order[begin : begin + batch]
                    net._step(images[rows], labels[rows], arguments)
                net.epochs += 1
        return net

    def _step(self, images: Array, labels: NDArray[np.int64], arguments: dict[str, Any]) -> None:
        keep = np.float32(1 - arguments["dropout"])
        inputs, values, masks = [], images, []
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            inputs.append(values)
            values = values @ weight + bias
            if number < 2:
                mask = ((values > 0) & (self.random.random(values.shape, np.float32) < keep)).astype(np.float32) / keep
                values = values * mask
                masks.append(mask)
        values = np.exp(values - values.max(axis=1, keepdims=True))
        slope = values / values.sum(axis=1, keepdims=True)
        slope[np.arange(len(labels)), labels] -= 1
        slope /= np.float32(len(labels))
        slopes: list[Array] = [np.empty(0, np.float32)] * 6
        for number in (2, 1, 0):
            slopes[number] = inputs[number].T @ slope + np.float32(arguments["decay"]) * self.weights[number]
            slopes[number + 3] = slope.sum(axis=0)
            if number:
                slope = (slope @ self.weights[number].T) * masks[number - 1]
        for each, velocity, change in zip((*self.weights, *self.biases), self.velocities, slopes, strict=True):
            velocity[...] = np.float32(arguments["momentum"]) * velocity - np.float32(arguments["rate"]) * change
            each[...] += velocity

    def accuracy(self, digits: Digits) -> float:
        """Return the share of held-out digits that are right; NaN if the weights are not finite."""
        values, labels = digits.held_out
        with np.errstate(all="ignore"):
            for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
                values = values @ weight + bias
                values = np.maximum(values, 0) if number < 2 else values
        return float((values.argmax(axis=1) == labels).mean()) if np.isfinite(values).all() else float("nan")

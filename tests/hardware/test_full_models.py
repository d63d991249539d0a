"""The models of an accelerator's size: built and trained for one step, so that they work the day a GPU is there."""

from __future__ import annotations

import numpy as np
import pytest

from hardware.cells import MODELS, SIZES, ModelName


@pytest.mark.soak
@pytest.mark.training
@pytest.mark.parametrize("model", MODELS)
def test_a_full_model_trains(model: ModelName) -> None:
    from hardware.models import build

    shape = SIZES["full"][model].shape
    made = build(model, "full", list(shape))
    network = made.pop("model")
    network.compile(**made)
    inputs = np.ones((2, *shape), np.int64 if model == "transformer" else np.float32)
    loss = network.train_on_batch(inputs, np.array([0, 1]))
    assert np.isfinite(loss)
    # What the published models have: 25.6 and 5.3 million with 1,000 classes, ViT-S/16 22 million.
    millions = network.count_params() / 1e6
    low, high = {
        "resnet50": (23, 24),
        "efficientnetb0": (4, 4.2),
        "vit": (21, 22.5),
        "transformer": (53, 56),
        "mlp": (54, 56),
    }[model]
    assert low < millions < high

"""Keras 3's messages about Keras 2 code, asked of Keras 3."""

from __future__ import annotations

import importlib

import pytest

from mptraining_api.script_signs import speaks_keras_2

pytestmark = pytest.mark.training


def test_what_keras_3_says_to_keras_2_code_is_recognized() -> None:
    three = importlib.import_module("keras._tf_keras.keras")
    with pytest.raises(ImportError) as raised:
        three.optimizers.legacy.Adam()
    assert speaks_keras_2(str(raised.value))
    optimizer = three.optimizers.Adam()
    for call in (
        lambda: optimizer.lr,
        lambda: three.optimizers.Adam(lr=0.1),
        lambda: three.layers.experimental,
        lambda: three.callbacks.ModelCheckpoint("cp.ckpt", save_weights_only=True),
        lambda: three.callbacks.ModelCheckpoint("folder"),
        lambda: three.Sequential([three.Input((1,))]).save("folder"),
        lambda: three.Sequential([three.Input((1,))]).save_weights("cp.ckpt"),
        lambda: three.Sequential([three.Input((1,))]).fit_generator,
    ):
        with pytest.raises((AttributeError, ValueError)) as error:
            call()
        assert speaks_keras_2(str(error.value)), str(error.value)
    assert not speaks_keras_2("module 'keras.layers' has no attribute 'Dens'")

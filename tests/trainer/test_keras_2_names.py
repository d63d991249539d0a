"""What is taken for Keras 2 code is what tf_keras has and Keras 3 refuses, asked of both packages."""

from __future__ import annotations

import importlib

import pytest
import tf_keras

from mptraining_api.script_signs import REMOVED_NAMES, speaks_keras_2

pytestmark = pytest.mark.training


def test_removed_names_are_in_tf_keras_and_not_in_keras_3() -> None:
    two, three = tf_keras, importlib.import_module("keras._tf_keras.keras")

    def has(module: object, name: str) -> bool:
        for part in name.split("."):
            if not hasattr(module, part):
                return False
            module = getattr(module, part)
        return True

    assert [name for name in REMOVED_NAMES if not has(two, name)] == []
    # Keras 3 keeps empty modules of two names; what is in them raises.
    kept = {"optimizers.legacy"}
    assert [name for name in REMOVED_NAMES if has(three, name) and name not in kept] == []
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

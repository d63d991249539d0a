"""Keras 3's messages about Keras 2 code, produced by Keras 3 itself."""

from __future__ import annotations

import importlib

import pytest

from mptraining_trainer.scripts.error_hints import Circumstances, next_step
from mptraining_trainer.scripts.old_names import is_keras_2_message


def test_keras_3s_messages_about_keras_2_code_are_recognized() -> None:
    three = importlib.import_module("keras._tf_keras.keras")
    with pytest.raises(ImportError) as raised:
        three.optimizers.legacy.Adam()
    assert is_keras_2_message(str(raised.value))
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
        assert is_keras_2_message(str(error.value)), str(error.value)
    assert not is_keras_2_message("module 'keras.layers' has no attribute 'Dens'")


UNDER = Circumstances(policy="float32", policy_of_job="float32", replicas=2, in_job_scope=True, legacy=False)


def test_a_class_of_the_program_s_own_with_a_model_to_read_is_no_keras_2() -> None:
    class Own:
        @property
        def model(self) -> int:
            return 1

        def __init__(self) -> None:
            self.model = 2  # type: ignore[misc]

    with pytest.raises(AttributeError, match=r"property 'model' of .* has no setter") as raised:
        Own()
    assert next_step(raised.value, UNDER) is None


def test_variables_made_in_a_step_on_replicas_have_a_next_step() -> None:
    said = "You must feed a value for placeholder tensor 'StatefulPartitionedCall/cond/else/_146/cond/Placeholder_2'"
    assert "accelerator.countPerWorker: 1" in str(next_step(ValueError(said), UNDER))
